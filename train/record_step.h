#ifndef GRADSYNC_TRAIN_RECORD_STEP_H_
#define GRADSYNC_TRAIN_RECORD_STEP_H_

#include <cstdint>

#include "base/monotonic_time.h"
#include "base/trace_recorder.h"

namespace gradsync {

// The host's clock in one step.
struct StepPoints {
  MonotonicTime begin;
  MonotonicTime have_data;
  MonotonicTime forward_done;
  MonotonicTime backward_done;
  MonotonicTime finished;  // all buckets are here and updated; a straggler is not
};

// Records a step that ends now: itself, data, forward, backward, and by how much a straggler
// stretches its update. Waits and updates are recorded where they happen
// (ddp/distributed_data_parallel.h). `recorder` may be null. Thread-safe.
void RecordStep(TraceRecorder* recorder, int64_t step, const StepPoints& points);

}  // namespace gradsync

#endif  // GRADSYNC_TRAIN_RECORD_STEP_H_
