#ifndef GRADSYNC_WORKER_TRAIN_RECORD_STEP_H_
#define GRADSYNC_WORKER_TRAIN_RECORD_STEP_H_

#include <cstdint>

#include "core/base/monotonic_time.h"
#include "core/base/trace_recorder.h"

namespace gradsync {

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

#endif  // GRADSYNC_WORKER_TRAIN_RECORD_STEP_H_
