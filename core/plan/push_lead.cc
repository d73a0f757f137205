#include "core/plan/push_lead.h"

#include <algorithm>

namespace gradsync {

std::vector<int> PushLeads(const Plan& plan, const ShardMap& shards,
                           const std::vector<int>& streams, int per_stream) {
  std::vector<int> most_of_a_stripe(shards.servers(), 0);
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
      std::vector<int> chunks(shards.servers(), 0);
      for (int chunk = 0; chunk < layout.world_size(); ++chunk) {
        const int slot = layout.slot(stripe, chunk);
        if (layout.range(slot).empty()) continue;
        const int server = shards.server({b, slot});
        most_of_a_stripe[server] = std::max(most_of_a_stripe[server], ++chunks[server]);
      }
    }
  }
  std::vector<int> leads;
  for (int server = 0; server < shards.servers(); ++server) {
    leads.push_back(most_of_a_stripe[server] + per_stream * streams[server]);
  }
  return leads;
}

}  // namespace gradsync
