// Which examples a rank sees, in which order: the meaning of PyTorch's DistributedSampler.
//
// In each epoch all ranks shuffle the whole dataset alike (by seed and epoch), make its length a
// multiple of the world size, and rank r takes positions r, r + n, r + 2n, ... of it. So every rank
// has equally many samples, the shares are disjoint up to the padding, and global batch i is the
// same set of examples whatever order the ranks are in. The permutation itself is our own unless
// PyTorch's is asked for, with which a run sees what a run of PyTorch sees, sample by sample.
#ifndef GRADSYNC_WORKER_DATA_SAMPLER_H_
#define GRADSYNC_WORKER_DATA_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

enum class SampleOrder {
  kOwn,      // a Fisher-Yates shuffle over core/base/random.h
  kPytorch,  // torch.randperm() with a CPU generator that is seeded with seed + epoch
};

// "gradsync" or "pytorch".
absl::string_view SampleOrderName(SampleOrder order);

// Errors: INVALID_ARGUMENT naming --sampler, both names and what came.
absl::StatusOr<SampleOrder> ParseSampleOrder(absl::string_view name);

struct SamplerOptions {
  int64_t dataset_size = 0;
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;  // False: the dataset's own order, every epoch (evaluation).
  // What to do when world_size does not divide dataset_size. False: repeat samples from the start
  // of the epoch's order until it does. True: leave the last ones of the epoch's order out.
  bool drop_last = false;
  uint64_t seed = 0;  // The same on every rank.
  SampleOrder order = SampleOrder::kOwn;
};

// A value without state: any (epoch, position) can be asked for at any time, so a restarted job
// continues exactly where it was. Thread-safe; nothing blocks.
class DistributedSampler {
 public:
  // Errors: INVALID_ARGUMENT if the dataset is empty, rank is outside [0, world_size), drop_last
  // leaves nothing for a rank, or PyTorch's order is asked for with 214 million samples or more,
  // for which its releases differ.
  static absl::StatusOr<DistributedSampler> Create(const SamplerOptions& options);

  // The same for all ranks and epochs.
  int64_t samples_per_rank() const { return samples_per_rank_; }

  // This rank's dataset indices for `epoch` (>= 0), samples_per_rank() of them, in order: element p
  // is the sample at position p. O(dataset_size).
  std::vector<int64_t> Indices(int64_t epoch) const;

  const SamplerOptions& options() const { return options_; }

 private:
  DistributedSampler(const SamplerOptions& options, int64_t samples_per_rank)
      : options_(options), samples_per_rank_(samples_per_rank) {}

  SamplerOptions options_;
  int64_t samples_per_rank_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_SAMPLER_H_
