// Which samples of a dataset a rank trains with: PyTorch's DistributedSampler.

#ifndef GRADSYNC_GRADSYNC_SAMPLER_H_
#define GRADSYNC_GRADSYNC_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "gradsync/status.h"

namespace gradsync {

struct DistributedSamplerOptions {
  int64_t dataset_size = 0;
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;  // false: the dataset's own order in every epoch
  // Where world_size does not divide dataset_size. False: samples from the start of the epoch's order
  // come again until it does. True: the last ones of the order are left out.
  bool drop_last = false;
  uint64_t seed = 0;  // the same on every rank
};

// In each epoch all ranks shuffle the whole dataset alike, and rank r takes positions r, r + n, r + 2n,
// ... of it. The permutation is that of torch.randperm() with a generator seeded with seed + epoch, so
// with the same numbers a rank sees what one under PyTorch does. A value without state: any epoch can
// be asked for at any time. Thread-safe.
class DistributedSampler {
 public:
  // Errors: kInvalidArgument where the dataset is empty, the rank is outside the world, drop_last
  // leaves nothing, or there are 214 million samples or more, where PyTorch's releases differ.
  static Result<DistributedSampler> Create(const DistributedSamplerOptions& options);

  // The same on all ranks and in all epochs.
  int64_t samples_per_rank() const;

  // This rank's samples in `epoch` (at least 0), as indices into the dataset, in their order. Takes
  // time and memory in proportion to the dataset's size.
  std::vector<int64_t> Indices(int64_t epoch) const;

 private:
  explicit DistributedSampler(const DistributedSamplerOptions& options) : options_(options) {}

  DistributedSamplerOptions options_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_SAMPLER_H_
