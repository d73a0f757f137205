#include "worker/train/record_step.h"

#include "absl/time/time.h"

namespace gradsync {
namespace {

// What a straggler sleeps is longer; what the clock shows without one, shorter.
constexpr absl::Duration kNoStraggler = absl::Microseconds(50);

void AddSpan(TraceRecorder* recorder, TraceSpan what, int64_t step, MonotonicTime begin,
             MonotonicTime end) {
  TraceEvent event;
  event.what = what;
  event.step = step;
  event.begin = begin;
  event.end = end;
  recorder->Add(event);
}

}  // namespace

void RecordBatch(TraceRecorder* recorder, int64_t step, const BatchPoints& points) {
  if (!Records(recorder, step)) return;
  AddSpan(recorder, TraceSpan::kData, step, points.begin, points.have_data);
  AddSpan(recorder, TraceSpan::kForward, step, points.have_data, points.forward_done);
  AddSpan(recorder, TraceSpan::kBackward, step, points.forward_done, points.backward_done);
}

void RecordReplicas(TraceRecorder* recorder, int64_t step, const ReplicaPoints& points) {
  if (!Records(recorder, step)) return;
  AddSpan(recorder, TraceSpan::kData, step, points.begin, points.have_data);
  AddSpan(recorder, TraceSpan::kReplicate, step, points.have_data, points.replicated);
  AddSpan(recorder, TraceSpan::kScatter, step, points.replicated, points.scattered);
  AddSpan(recorder, TraceSpan::kForward, step, points.scattered, points.forward_done);
  AddSpan(recorder, TraceSpan::kBackward, step, points.forward_done, points.applied);
  AddSpan(recorder, TraceSpan::kGather, step, points.applied, points.gathered);
  AddSpan(recorder, TraceSpan::kReduce, step, points.gathered, points.reduced);
}

void RecordStep(TraceRecorder* recorder, int64_t step, MonotonicTime begin,
                MonotonicTime finished) {
  if (!Records(recorder, step)) return;
  const MonotonicTime now = MonotonicTime::Now();
  AddSpan(recorder, TraceSpan::kStep, step, begin, now);
  if (now - finished > kNoStraggler) AddSpan(recorder, TraceSpan::kUpdate, step, finished, now);
}

}  // namespace gradsync
