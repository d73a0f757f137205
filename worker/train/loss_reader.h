// Losses on their way to the host. Asking a tensor on a GPU for its value waits for all that the
// GPU still has to do; here the value follows when it is there, and the step goes on.

#ifndef GRADSYNC_WORKER_TRAIN_LOSS_READER_H_
#define GRADSYNC_WORKER_TRAIN_LOSS_READER_H_

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"

namespace gradsync {

// One number that is being copied to the host. Not thread-safe. Methods throw what LibTorch throws
// when the device has failed.
class PendingScalar {
 public:
  virtual ~PendingScalar() = default;
  virtual bool ready() const = 0;  // never waits
  virtual double Wait() = 0;       // the number, once it is there
};

// Starts to copy `scalar`, a tensor of one fp32 element, and does not wait: on the CPU it is ready
// at once; on another device the copy is queued on the current stream, into pinned memory. Neither
// the tensor nor its graph is kept alive.
std::unique_ptr<PendingScalar> ReadScalar(const at::Tensor& scalar);

// Collects losses in the order of their steps. Not thread-safe.
class LossReader {
 public:
  using Reader = std::function<std::unique_ptr<PendingScalar>(const at::Tensor&)>;

  explicit LossReader(Reader reader = ReadScalar) : reader_(std::move(reader)) {}

  // The next step's loss. Never waits; throws what LibTorch throws.
  void Add(const at::Tensor& loss) { pending_.push_back(reader_(loss)); }

  // Appends to `losses` those that are there, the oldest first and none left out. Waits only while
  // more than `most_pending` are on their way: 0 takes all.
  // Errors: INTERNAL when LibTorch throws; what it had appended stays.
  absl::Status Take(size_t most_pending, std::deque<double>* losses);

 private:
  const Reader reader_;
  std::deque<std::unique_ptr<PendingScalar>> pending_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_LOSS_READER_H_
