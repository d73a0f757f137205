#ifndef GRADSYNC_PIPELINE_TENSOR_INBOX_H_
#define GRADSYNC_PIPELINE_TENSOR_INBOX_H_

#include <map>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "pipeline/tensor_frames.h"

namespace gradsync {

// Tensors that have come from one neighbour, until somebody takes them: in whatever order they are
// wanted, and whether they are wanted before or after they come. Thread-safe.
class TensorInbox {
 public:
  // Errors: INVALID_ARGUMENT for a key that is here already.
  absl::Status Put(const TensorKey& key, at::Tensor tensor);

  // Waits for it; the deadline is a patient one. Errors: DEADLINE_EXCEEDED naming what did not come;
  // what Fail() was called with.
  absl::StatusOr<at::Tensor> Take(const TensorKey& key, Deadline deadline);

  // From now on nothing is to be had. The first call counts.
  void Fail(const absl::Status& status);

  // Waits for Fail(), and returns what it was called with; OK if it was not until `deadline`.
  absl::Status WaitForFailure(Deadline deadline);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<TensorKey, at::Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_PIPELINE_TENSOR_INBOX_H_
