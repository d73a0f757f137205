// Which samples of a dataset a rank takes in an epoch, and in which order: the meaning of PyTorch's
// DistributedSampler, as arithmetic.
//
// In each epoch all ranks shuffle the whole dataset alike (by seed and epoch), make its length a
// multiple of the world size, and rank r takes positions r, r + n, r + 2n, ... of it. So every rank
// has equally many samples, the shares are disjoint up to the padding, and global batch i is the
// same set of examples whatever order the ranks are in.

#ifndef GRADSYNC_CORE_BASE_EPOCH_SAMPLES_H_
#define GRADSYNC_CORE_BASE_EPOCH_SAMPLES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace gradsync {

enum class SampleOrder {
  kOwn,      // a Fisher-Yates shuffle over core/base/random.h
  kPytorch,  // torch.randperm() with a CPU generator that is seeded with seed + epoch
};

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

// Errors: INVALID_ARGUMENT if the dataset is empty, rank is outside [0, world_size), drop_last leaves
// nothing for a rank, or PyTorch's order is asked for with 214 million samples or more, for which its
// releases differ.
absl::Status CheckSampler(const SamplerOptions& options);

// Of options that passed the check: the same for all ranks and epochs.
int64_t SamplesPerRank(const SamplerOptions& options);

// Of options that passed the check: the rank's dataset indices for `epoch` (>= 0), SamplesPerRank() of
// them, in order: element p is the sample at position p. O(dataset_size).
std::vector<int64_t> SamplesOfEpoch(const SamplerOptions& options, int64_t epoch);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_EPOCH_SAMPLES_H_
