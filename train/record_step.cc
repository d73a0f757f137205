#include "train/record_step.h"

#include "absl/time/time.h"

namespace gradsync {
namespace {

// What a straggler sleeps is longer; what the clock shows without one, shorter.
constexpr absl::Duration kNoStraggler = absl::Microseconds(50);

}  // namespace

void RecordStep(TraceRecorder* recorder, int64_t step, const StepPoints& points) {
  if (!Records(recorder, step)) return;
  const MonotonicTime now = MonotonicTime::Now();
  const auto add = [&](TraceSpan what, MonotonicTime begin, MonotonicTime end) {
    TraceEvent event;
    event.what = what;
    event.step = step;
    event.begin = begin;
    event.end = end;
    recorder->Add(event);
  };
  add(TraceSpan::kStep, points.begin, now);
  add(TraceSpan::kData, points.begin, points.have_data);
  add(TraceSpan::kForward, points.have_data, points.forward_done);
  add(TraceSpan::kBackward, points.forward_done, points.backward_done);
  if (now - points.finished > kNoStraggler) add(TraceSpan::kUpdate, points.finished, now);
}

}  // namespace gradsync
