#ifndef GRADSYNC_CORE_PIPELINE_TENSOR_INBOX_H_
#define GRADSYNC_CORE_PIPELINE_TENSOR_INBOX_H_

#include <map>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/pipeline/stage_channel.h"
#include "core/pipeline/tensor_frames.h"

namespace gradsync {

// Tensors that have come from the neighbours, until somebody takes them: in whatever order they are
// wanted, and whether they are wanted before or after they come. Thread-safe.
class TensorInbox {
 public:
  using Neighbour = StageChannel::Neighbour;

  // Errors: INVALID_ARGUMENT for a key that is here already.
  absl::Status Put(Neighbour from, const TensorKey& key, at::Tensor tensor);

  bool Has(Neighbour from, const TensorKey& key);

  // Waits for it; the deadline is a patient one. Errors: DEADLINE_EXCEEDED naming what did not come;
  // what Fail() was called with.
  absl::StatusOr<at::Tensor> Take(Neighbour from, const TensorKey& key, Deadline deadline);

  // Waits for one of two, and returns who it came from: of both, the stage behind. Errors: those of
  // Take().
  absl::StatusOr<Neighbour> AwaitEither(const TensorKey& from_before, const TensorKey& from_behind,
                                        Deadline deadline);

  // From now on nothing is to be had. The first call counts.
  void Fail(const absl::Status& status);

  // Waits for Fail(), and returns what it was called with; OK if it was not until `deadline`.
  absl::Status WaitForFailure(Deadline deadline);

 private:
  using Place = std::pair<Neighbour, TensorKey>;

  // Waits until `look` returns true, which it asks under the mutex. `what` names what did not come.
  absl::Status AwaitLocked(absl::FunctionRef<bool()> look, absl::FunctionRef<std::string()> what,
                           Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::map<Place, at::Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_TENSOR_INBOX_H_
