#ifndef GRADSYNC_ALLREDUCE_RING_NORM_H_
#define GRADSYNC_ALLREDUCE_RING_NORM_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "core/plan/plan.h"
#include "proto/frame.pb.h"

namespace gradsync {

// The bookkeeping of clipping at the owners: when all means of a step are complete here, and when
// the sums of squares of all owners are. A rank that owns nothing takes no part. Not thread-safe;
// no I/O.
//
// An owner's squares complete only after every rank launched the step, so they never come before
// bucket 0 is launched here; and no owner finishes a step before it has everybody's squares, so
// those of two steps never meet.
class RingNorm {
 public:
  using Numbers = std::shared_ptr<const std::vector<double>>;

  RingNorm(const Plan& plan, int rank);

  // A bucket of a step was launched; buckets come in order.
  void Launched(const StepOptions& step, int bucket);

  // The mean of an owned chunk is complete.
  void MeanComplete() { --means_missing_; }

  // True once per step that clips: all buckets are launched and all means of this rank complete.
  // Its squares are then to be set and sent.
  bool TakeOwnDue();

  // The squares of `rank`, one per chunk that it owns, in order of bucket and slot; `header` is the
  // frame that they came in. Errors: INVALID_ARGUMENT when they came already or nothing is clipped;
  // FAILED_PRECONDITION when the sender's step has other options.
  absl::Status Set(int rank, const proto::FrameHeader& header, Numbers squares);

  // Once per step, when the squares of all owners are there: what the means are to be multiplied
  // by, min(1, max_norm / (norm + 1e-6)) as in torch's clip_grad_norm_, the squares added in order
  // of bucket and slot.
  absl::optional<double> TakeScale();

  const StepOptions& step() const { return step_; }

 private:
  const Plan& plan_;
  const int rank_;
  std::vector<int> owned_;  // chunks by rank
  StepOptions step_;
  int launches_missing_ = 0;
  int means_missing_ = 0;
  bool own_sent_ = false;
  std::vector<Numbers> squares_;  // by rank; null until they came
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_NORM_H_
