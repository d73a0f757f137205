// What one process did when, in a few steps of a job: for the picture that docs/use/traces.md shows.

#ifndef GRADSYNC_CORE_BASE_TRACE_RECORDER_H_
#define GRADSYNC_CORE_BASE_TRACE_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"

namespace gradsync {

// What a piece of time was spent on. The numbers are those of proto/step_trace.proto.
enum class TraceSpan {
  // The training thread's.
  kStep = 1,
  kData = 2,      // waiting for the batch
  kForward = 3,   // model and loss
  kBackward = 4,  // with the launches in it
  kExposed = 5,   // waiting for one bucket after backward
  kUpdate = 6,    // the worker's optimizer, one bucket

  // A bucket's.
  kReady = 7,   // an instant: complete, and all before it are launched
  kBucket = 8,  // from launch to resolution

  // A chunk's.
  kSend = 9,       // from the moment that the link has it until the link has let it go
  kReceive = 10,   // an instant: it is here, whole
  kFold = 11,      // a contribution is added; over shared memory all of them
  kOptimize = 12,  // its owner's optimizer
  kCopy = 13,      // a result is copied to its place

  // The training thread's where the process has replicas of the model; forward and backward are
  // then replica 0's and all replicas'.
  kReplicate = 14,  // parameters are copied to replicas
  kScatter = 15,    // a batch is cut into parts
  kGather = 16,     // losses are brought together
  kReduce = 17,     // gradients are added up, and launched
};

// Which way a chunk goes: contributions to its owner, or the result from there.
enum class ChunkWay { kNone = 0, kThere = 1, kBack = 2 };

struct TraceEvent {
  TraceSpan what = TraceSpan::kStep;
  int64_t step = 0;
  // Where there is one; else -1.
  int bucket = -1;
  int slot = -1;
  int peer = -1;  // who sends or receives: workers by rank, then servers
  ChunkWay way = ChunkWay::kNone;
  MonotonicTime begin;
  MonotonicTime end;
  int64_t bytes = 0;
};

// Keeps what happens in the steps of a window, which is set from the start, so that code that might
// record asks nothing but Records(). Thread-safe; blocks only for other threads that add.
class TraceRecorder {
 public:
  // More are dropped, and counted: some 10 MB.
  static constexpr size_t kMostEvents = 200000;

  TraceRecorder(int64_t first_step, int64_t last_step) : first_(first_step), last_(last_step) {}

  int64_t first_step() const { return first_; }
  int64_t last_step() const { return last_; }
  bool Wants(int64_t step) const { return step >= first_ && step <= last_; }

  void Add(const TraceEvent& event);

  // What was added and not taken yet.
  std::vector<TraceEvent> Take();

  int64_t dropped() const;

  // What other processes recorded (core/group/process_trace.h), where this one has asked them for
  // it.
  void AddProcess(std::string trace);
  std::vector<std::string> TakeProcesses();

 private:
  const int64_t first_;
  const int64_t last_;
  mutable Mutex mutex_;
  std::vector<TraceEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> processes_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// `recorder` is null where nothing is recorded, which is the default of every job.
inline bool Records(const TraceRecorder* recorder, int64_t step) {
  return recorder != nullptr && recorder->Wants(step);
}

// Records its own life, if at all. `recorder` may be null, else outlives it.
class RecordedSpan {
 public:
  RecordedSpan(TraceRecorder* recorder, TraceSpan what, int64_t step, int bucket = -1,
               int slot = -1, int peer = -1)
      : recorder_(Records(recorder, step) ? recorder : nullptr) {
    if (recorder_ != nullptr) Begin(what, step, bucket, slot, peer);
  }
  ~RecordedSpan() {
    if (recorder_ != nullptr) End();
  }
  RecordedSpan(const RecordedSpan&) = delete;
  RecordedSpan& operator=(const RecordedSpan&) = delete;

 private:
  void Begin(TraceSpan what, int64_t step, int bucket, int slot, int peer);
  void End();

  TraceRecorder* const recorder_;
  TraceEvent event_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_TRACE_RECORDER_H_
