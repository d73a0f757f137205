// Tensors between a stage of a pipeline and its neighbours, whoever carries them.

#ifndef GRADSYNC_WORKER_PIPELINE_STAGE_CHANNEL_H_
#define GRADSYNC_WORKER_PIPELINE_STAGE_CHANNEL_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "worker/pipeline/tensor_frames.h"

namespace gradsync {

// A stage's place in one pipeline: a rank (stage_link.h), or a thread of one process
// (LocalStages). A message is a tensor with its key, and its sizes, strides and type; nothing has to
// be known of it before it comes, so the last micro-batch may be smaller and a receive is always
// posted.
//
// Send() never waits, so that computing is never held up by a channel, and no order of sends and
// receives can make two stages wait for each other; how many tensors are on their way is bounded by
// the schedule (core/plan/pipeline_schedule.h).
//
// Thread-safe. After a failure everything returns it.
class StageChannel {
 public:
  enum class Neighbour { kBefore, kBehind };

  virtual ~StageChannel() = default;

  virtual int stage() const = 0;
  virtual int stages() const = 0;

  // Of `tensor` nobody may change the values any more, but the neighbour, who may.
  virtual void Send(Neighbour to, const TensorKey& key, const at::Tensor& tensor) = 0;

  // Whether a tensor has come, and Receive() would not wait for it.
  virtual bool IsHere(Neighbour from, const TensorKey& key) = 0;

  // Waits for one of two tensors, and returns who it came from: of both, the stage behind. Errors:
  // those of Receive().
  virtual absl::StatusOr<Neighbour> AwaitEither(const TensorKey& from_before,
                                                const TensorKey& from_behind,
                                                Deadline deadline) = 0;

  // Waits for a tensor. Errors: DEADLINE_EXCEEDED naming what did not come; the failure.
  virtual absl::StatusOr<at::Tensor> Receive(Neighbour from, const TensorKey& key,
                                             Deadline deadline) = 0;
};

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

// The channels of all stages of one pipeline, which are threads of one process. A tensor is handed over
// as it lies, and so not copied.
//
// Thread-safe. Waits for threads of this process alone.
class LocalStages {
 public:
  explicit LocalStages(int count);  // at least 1
  ~LocalStages();

  LocalStages(const LocalStages&) = delete;
  LocalStages& operator=(const LocalStages&) = delete;

  int count() const { return static_cast<int>(channels_.size()); }

  // Lives as long as this object. Its Receive() returns INVALID_ARGUMENT, and so do all others from
  // then on, after two messages with one key.
  StageChannel& channel(int stage);

  // Ends all waits, and all that would follow. The first call counts.
  void Fail(const absl::Status& reason);

 private:
  class Channel;

  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_STAGE_CHANNEL_H_
