// Tensors between a stage of a pipeline and its neighbours, whoever carries them.

#ifndef GRADSYNC_CORE_PIPELINE_STAGE_CHANNEL_H_
#define GRADSYNC_CORE_PIPELINE_STAGE_CHANNEL_H_

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/pipeline/tensor_frames.h"

namespace gradsync {

// A stage's place in one pipeline: a rank (stage_link.h), or a thread of one process
// (local_stages.h). A message is a tensor with its key, and its sizes, strides and type; nothing has
// to be known of it before it comes, so the last micro-batch may be smaller and a receive is always
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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_STAGE_CHANNEL_H_
