// A stage's forwards and backwards, replayed: real tensors between stages, and sleep instead of
// computation.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_STAGE_REPLAY_H_
#define GRADSYNC_BENCHMARKS_REPLAY_STAGE_REPLAY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/replay/replay_clock.h"
#include "pipeline/stage_link.h"
#include "plan/pipeline_schedule.h"

namespace gradsync {

// Where the time of a replayed computation went, microseconds.
struct ReplayedParts {
  double waited = 0;   // for neighbours
  double stalled = 0;  // for the memory of buckets, and for parameters
  double forward = 0;
  double backward = 0;
  double late = 0;  // the most by which a launch was woken up late
};

// Not thread-safe. A failure is the job's (pipeline/stage_link.h).
class StageReplay {
 public:
  // `link`: of this rank's pipeline, or null without neighbours; `stage`, of as many, is its number.
  // `link` and `clock` must outlive the result.
  StageReplay(RecordedStage recorded, PipelineSchedule schedule, int64_t micro_batches, int stage,
              int stages, StageLink* link, ReplayClock* clock, absl::Duration timeout);

  // Collective over the pipeline: connects to the neighbours, who must replay the same job.
  // Errors: those of StageLink::Connect().
  absl::Status Connect(const std::string& fingerprint);

  // The computation of `step`, whose times are multiplied by `factor`: each forward and backward
  // begins when its input has come and takes its recorded time, what passes the cuts is sent, and
  // `launch` is told of each bucket when the last backward completes it. A wake-up that is late
  // makes the next piece of computation shorter, not the step longer. Errors: those of
  // StageLink::Receive().
  absl::Status Run(int64_t step, double factor, const std::function<void(int bucket)>& launch,
                   ReplayedParts* parts);

  // After the last step. Errors: those of StageLink::Finish().
  absl::Status Finish();

  double update_us() const { return recorded_.update_us; }

  // Bytes of tensors so far.
  int64_t bytes_sent() const { return link_ == nullptr ? 0 : link_->bytes_sent(); }
  int64_t bytes_received() const { return link_ == nullptr ? 0 : link_->bytes_received(); }

 private:
  bool HasNeighbour(StageLink::Neighbour neighbour) const;
  absl::Status Await(StageLink::Neighbour from, const TensorKey& key, double* due,
                     ReplayedParts* parts);

  const RecordedStage recorded_;
  const std::vector<StageAction> actions_;
  const int64_t micro_batches_;
  const int stage_;
  const int stages_;
  StageLink* const link_;
  ReplayClock& clock_;
  const absl::Duration timeout_;
  // What is sent, of a micro-batch and of the last one. Nobody writes to them.
  at::Tensor output_, last_output_;
  at::Tensor gradient_, last_gradient_;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_STAGE_REPLAY_H_
