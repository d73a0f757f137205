// How long steps take, and the same on a trace.

#ifndef GRADSYNC_WORKER_TRAIN_TRAINING_CLOCK_H_
#define GRADSYNC_WORKER_TRAIN_TRAINING_CLOCK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/trace_recorder.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"

namespace gradsync {

// How long the steps of a training loop take.
//
// Without a GPU: by the host's clock, from BeginStep() to EndStep().
//
// With one the host only queues a step, and is done with that long before the step is. There a step
// lasts, on the device, from the end of the step before it to its own, so nothing that the device
// does or waits for is left out, and the times add up to what all steps took. Its time is known
// when the device has come to its end.
//
//   clock.Drain()
//   each step:  clock.BeginStep(); queue it; clock.EndStep();
//               while clock.Known(): use clock.Take()
//   clock.Drain(), then the rest of Take()
//
// Not thread-safe; all calls on one thread, whose compute stream is meant. Errors: those of GpuApi.
class TrainingClock {
 public:
  struct StepTime {
    absl::Duration total;
    absl::Duration end;  // since the first step began; what Pause() left out is not in it
  };

  // `gpu` may be null.
  explicit TrainingClock(std::shared_ptr<GpuApi> gpu) : gpu_(std::move(gpu)) {}

  absl::Status BeginStep();
  absl::Status EndStep();

  // What is done, or queued, from here to the next BeginStep() belongs to no step.
  void Pause();

  // Pauses, and waits until the device has done all that was queued on the compute stream, so that
  // the host's clock may be read for what was done until now. Returns at once without a GPU.
  absl::Status Drain();

  // Whether Take() would return without waiting. Only while a step was not taken.
  absl::StatusOr<bool> Known();

  // The time of the first step that was not taken yet. Waits for its end.
  absl::StatusOr<StepTime> Take();

 private:
  using SharedEvent = std::shared_ptr<ScopedEvent>;
  struct Step {
    // Without a GPU.
    MonotonicTime begin;
    MonotonicTime end;
    absl::Duration pauses;  // before it, all together
    // With one.
    SharedEvent from;
    SharedEvent to;
  };

  absl::StatusOr<SharedEvent> Mark();

  const std::shared_ptr<GpuApi> gpu_;
  std::deque<Step> steps_;  // the last may be under way
  bool paused_ = true;
  // Without a GPU.
  MonotonicTime first_begin_ = MonotonicTime::InfinitePast();
  MonotonicTime paused_at_;
  absl::Duration pauses_;
  // With one.
  SharedEvent last_;      // where the step that ended last did
  absl::Duration taken_;  // by the steps of Take()
};

// The host's clock in one batch of a step.
struct BatchPoints {
  MonotonicTime begin;
  MonotonicTime have_data;
  MonotonicTime forward_done;
  MonotonicTime backward_done;
};

// Records data, forward and backward. `recorder` may be null, here and below. Thread-safe.
void RecordBatch(TraceRecorder* recorder, int64_t step, const BatchPoints& points);

// The same in a batch of a step with replicas in one process (data_parallel_step.h).
struct ReplicaPoints {
  MonotonicTime begin;
  MonotonicTime have_data;
  MonotonicTime replicated;
  MonotonicTime scattered;
  MonotonicTime forward_done;  // of replica 0
  MonotonicTime applied;       // backward of all replicas
  MonotonicTime gathered;
  MonotonicTime reduced;
};

void RecordReplicas(TraceRecorder* recorder, int64_t step, const ReplicaPoints& points);

// Records a step that ends now: itself, and by how much a straggler stretches its update. At
// `finished` all buckets were there and updated. Waits and updates are recorded where they happen
// (gradsync/ddp/ddp_engine.h). Thread-safe.
void RecordStep(TraceRecorder* recorder, int64_t step, MonotonicTime begin, MonotonicTime finished);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TRAINING_CLOCK_H_
