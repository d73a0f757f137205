#include "core/base/trace_recorder.h"

#include <utility>

namespace gradsync {

void TraceRecorder::Add(const TraceEvent& event) {
  MutexLock lock(&mutex_);
  if (events_.size() < kMostEvents) {
    events_.push_back(event);
  } else {
    ++dropped_;
  }
}

std::vector<TraceEvent> TraceRecorder::Take() {
  MutexLock lock(&mutex_);
  return std::exchange(events_, {});
}

int64_t TraceRecorder::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

void TraceRecorder::AddProcess(std::string trace) {
  MutexLock lock(&mutex_);
  processes_.push_back(std::move(trace));
}

std::vector<std::string> TraceRecorder::TakeProcesses() {
  MutexLock lock(&mutex_);
  return std::exchange(processes_, {});
}

void RecordedSpan::Begin(TraceSpan what, int64_t step, int bucket, int slot, int peer) {
  event_.what = what;
  event_.step = step;
  event_.bucket = bucket;
  event_.slot = slot;
  event_.peer = peer;
  event_.begin = MonotonicTime::Now();
}

void RecordedSpan::End() {
  event_.end = MonotonicTime::Now();
  recorder_->Add(event_);
}

}  // namespace gradsync
