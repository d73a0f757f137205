#ifndef GRADSYNC_WORKER_TRAIN_TENSOR_MEMORY_H_
#define GRADSYNC_WORKER_TRAIN_TENSOR_MEMORY_H_

#include <cstdint>

namespace gradsync {

// How much memory LibTorch's tensors take, of all models and threads of this process: batches, what
// a forward keeps for its backward, buffers, temporary tensors. Not in it: parameters and gradients,
// which lie in the backend's buckets once these are bound, and what libraries such as oneDNN
// allocate for themselves while they compute.
//
// Not thread-safe; what it counts may be allocated by any thread.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;

  // The peak begins at what is allocated now.
  virtual void StartPeak() = 0;

  // The most bytes that were allocated at once since StartPeak().
  virtual int64_t PeakBytes() const = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TENSOR_MEMORY_H_
