// Which examples a rank sees, in which order: core/base/epoch_samples.h as a value that is checked once.
// The permutation is our own unless PyTorch's is asked for, with which a run sees what a run of PyTorch
// sees, sample by sample.
#ifndef GRADSYNC_WORKER_DATA_SAMPLER_H_
#define GRADSYNC_WORKER_DATA_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/epoch_samples.h"

namespace gradsync {

// "gradsync" or "pytorch".
absl::string_view SampleOrderName(SampleOrder order);

// Errors: INVALID_ARGUMENT naming --sampler, both names and what came.
absl::StatusOr<SampleOrder> ParseSampleOrder(absl::string_view name);

// A value without state: any (epoch, position) can be asked for at any time, so a restarted job
// continues exactly where it was. Thread-safe; nothing blocks.
class RankSampler {
 public:
  // Errors: those of CheckSampler().
  static absl::StatusOr<RankSampler> Create(const SamplerOptions& options);

  // The same for all ranks and epochs.
  int64_t samples_per_rank() const { return SamplesPerRank(options_); }

  // See SamplesOfEpoch().
  std::vector<int64_t> Indices(int64_t epoch) const { return SamplesOfEpoch(options_, epoch); }

  const SamplerOptions& options() const { return options_; }

 private:
  explicit RankSampler(const SamplerOptions& options) : options_(options) {}

  SamplerOptions options_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_SAMPLER_H_
