#include "worker/data/sampler.h"

#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::string_view SampleOrderName(SampleOrder order) {
  return order == SampleOrder::kPytorch ? "pytorch" : "gradsync";
}

absl::StatusOr<SampleOrder> ParseSampleOrder(absl::string_view name) {
  for (SampleOrder order : {SampleOrder::kOwn, SampleOrder::kPytorch}) {
    if (SampleOrderName(order) == name) return order;
  }
  return FlagError("sampler", "gradsync or pytorch", name);
}

absl::StatusOr<RankSampler> RankSampler::Create(const SamplerOptions& options) {
  GS_RETURN_IF_ERROR(CheckSampler(options));
  return RankSampler(options);
}

}  // namespace gradsync
