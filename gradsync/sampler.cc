#include "gradsync/sampler.h"

#include "core/base/epoch_samples.h"
#include "gradsync/group_impl.h"

namespace gradsync {
namespace {

SamplerOptions OptionsOf(const DistributedSamplerOptions& from) {
  SamplerOptions options;
  options.dataset_size = from.dataset_size;
  options.rank = from.rank;
  options.world_size = from.world_size;
  options.shuffle = from.shuffle;
  options.drop_last = from.drop_last;
  options.seed = from.seed;
  options.order = SampleOrder::kPytorch;
  return options;
}

}  // namespace

Result<DistributedSampler> DistributedSampler::Create(const DistributedSamplerOptions& options) {
  const Status status = ToStatus(CheckSampler(OptionsOf(options)));
  if (!status.ok()) return status;
  return DistributedSampler(options);
}

int64_t DistributedSampler::samples_per_rank() const { return SamplesPerRank(OptionsOf(options_)); }

std::vector<int64_t> DistributedSampler::Indices(int64_t epoch) const {
  return SamplesOfEpoch(OptionsOf(options_), epoch);
}

}  // namespace gradsync
