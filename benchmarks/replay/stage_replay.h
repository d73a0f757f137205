// Forwards and backwards of a stage, or of a slice, replayed: real tensors between ranks, and sleep
// instead of computation.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_STAGE_REPLAY_H_
#define GRADSYNC_BENCHMARKS_REPLAY_STAGE_REPLAY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/replay/replay_clock.h"
#include "core/base/deadline.h"
#include "core/plan/pipeline_schedule.h"
#include "core/plan/slice_traffic.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_link.h"

namespace gradsync {

// Where the time of a replayed computation went, microseconds.
struct ReplayedParts {
  double waited = 0;   // for neighbours, and in meetings with other slices
  double stalled = 0;  // for the memory of buckets, and for parameters
  double forward = 0;
  double backward = 0;
  double late = 0;  // the most by which a launch was woken up late
};

// What a rank replays. Links must outlive it.
struct ReplayedStage {
  RecordedStage recorded;
  PipelineSchedule schedule = PipelineSchedule::kNaive;
  int64_t micro_batches = 1;
  int stage = 0;  // its number among as many
  int stages = 1;
  StageLink* link = nullptr;    // of this rank's pipeline; null without neighbours
  SliceLink* slices = nullptr;  // of a slice: those that compute the same layers
  absl::Duration timeout;
};

// Not thread-safe. A failure is the job's (worker/pipeline/stage_link.h, worker/pipeline/slice_link.h).
class StageReplay {
 public:
  // `clock` must outlive the result.
  StageReplay(ReplayedStage stage, ReplayClock* clock);

  // Collective over the pipeline, or the slices: connects to the others, who must replay the same
  // job. Errors: those of StageLink::Connect() and SliceLink::Connect().
  absl::Status Connect(const std::string& fingerprint);

  // The computation of `step`, whose times are multiplied by `factor`: each forward and backward
  // begins when its input has come and takes its recorded time, and as long as meetings of slices
  // take on top; what passes the cuts is sent, and `launch` is told of each bucket when the last
  // backward completes it. A wake-up that is late makes the next piece of computation shorter, not
  // the step longer. Errors: those of StageLink::Receive() and of SliceLink's collectives.
  absl::Status Run(int64_t step, double factor, const std::function<void(int bucket)>& launch,
                   ReplayedParts* parts);

  // After the last step. Errors: those of StageLink::Finish() and SliceLink::Finish().
  absl::Status Finish();

  double update_us() const { return stage_.recorded.update_us; }
  bool is_slice() const { return stage_.slices != nullptr; }

  // Bytes of tensors so far.
  int64_t bytes_sent() const;
  int64_t bytes_received() const;

 private:
  using Launcher = std::function<void(int bucket)>;

  bool HasNeighbour(StageLink::Neighbour neighbour) const;
  absl::StatusOr<StageAction> Next(const StageOrder& order, int64_t step, double* due,
                                   ReplayedParts* parts);
  void Waited(double asked, double* due, ReplayedParts* parts);
  absl::Status Await(StageLink::Neighbour from, const TensorKey& key, double* due,
                     ReplayedParts* parts);
  absl::Status Compute(StageAction action, double factor, const Launcher& launch, double* due,
                       ReplayedParts* parts);
  void LaunchAt(double due, int bucket, const Launcher& launch, ReplayedParts* parts);
  absl::Status Meet(const SliceMeeting& meeting);
  void MakeTensors(const std::vector<RecordedMeeting>& meetings);
  bool IsLast(StageAction action) const { return action.micro_batch + 1 == stage_.micro_batches; }
  const RecordedPass& PassOf(StageAction action) const {
    return IsLast(action) ? stage_.recorded.last : stage_.recorded.each;
  }
  Deadline NewDeadline() const { return Deadline::In(stage_.timeout); }

  const ReplayedStage stage_;
  ReplayClock& clock_;
  // What is sent, of a micro-batch and of the last one, and what is brought to meetings. Nobody
  // writes to them.
  at::Tensor output_, last_output_;
  at::Tensor gradient_, last_gradient_;
  std::map<std::pair<SliceCall, int64_t>, at::Tensor> brought_;  // by call and numbers
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_STAGE_REPLAY_H_
