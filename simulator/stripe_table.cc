#include "simulator/stripe_table.h"

namespace gradsync {

std::vector<StripeTotals> StripesOf(const Plan& plan, Returned returned) {
  std::vector<StripeTotals> stripes;
  const double all = static_cast<double>(plan.total_bytes());
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
      StripeTotals totals;
      totals.bucket = b;
      for (int chunk = 0; chunk < layout.world_size(); ++chunk) {
        const int64_t elements = layout.range(layout.slot(stripe, chunk)).size();
        if (elements == 0) break;  // and so are those after it
        ++totals.chunks;
        totals.gradient_bytes += GradientForm(plan.codec(), elements).bytes();
        totals.returned_bytes +=
            ReturnedForm(plan.codec(), elements, plan.world_size(), returned).bytes();
        totals.share += 4 * elements / all;
      }
      if (totals.chunks > 0) stripes.push_back(totals);
    }
  }
  return stripes;
}

}  // namespace gradsync
