// What a job shows while it runs and leaves to look at, besides its metrics: progress,
// TensorBoard's scalars, and the trace of all processes.

#ifndef GRADSYNC_WORKER_SEEING_H_
#define GRADSYNC_WORKER_SEEING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/monotonic_time.h"
#include "core/base/trace_recorder.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "gradsync/join/agree_on_flags.h"
#include "gradsync/join/join.h"
#include "worker/trace/tensorboard_file.h"
#include "worker/train/kineto_trace.h"
#include "worker/train/trainer.h"

namespace gradsync {

// A trace of some steps of all processes.
struct StepTraceOptions {
  std::string path;  // of the file, which rank 0 writes; empty: none
  int64_t first_step = 0;
  int64_t last_step = 0;

  // The links that the simulator is told of, each way, for its own picture of the first of these
  // steps; 0: none is drawn.
  double bytes_per_second = 0;
  Placement placement = Placement::kDedicated;  // where it is told that servers are

  bool wanted() const { return !path.empty(); }
};

// What a job leaves behind for people to look at, besides lines and metrics.
struct SeeingOptions {
  StepTraceOptions trace;
  TraceOptions kineto;      // of this rank alone
  std::string tensorboard;  // folder for rank 0's event file; empty: none
};

// What --trace, --trace_steps, --trace_bandwidth, --trace_placement and --tensorboard say. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<SeeingOptions> SeeingFromFlags(int rank);

// Whether --trace is Kineto's, which each rank has for itself; else all must have the same, because
// rank 0 writes the trace of all.
bool TracesEachRank();

// The trace's flags, for the comparison of ranks; empty where each rank has its own, or none.
void AddTraceFlags(FlagTexts* flags);

// How far a job is, in one line.
struct ProgressOptions {
  int64_t every = 0;             // a line after the first, the last, and every so many; 0: none
  int64_t samples_per_step = 0;  // of all ranks
  int64_t steps_per_epoch = 0;   // 0: nothing is said of epochs
};

// Not thread-safe. Nothing blocks.
class Progress {
 public:
  // The first step begins now.
  Progress(const ProgressOptions& options, MonotonicTime now)
      : options_(options), begin_(now), last_time_(now) {}

  // To be called for every step. The line for one that is reported at `now`, without an end of
  // line; empty where there is none. The accuracy is this rank's, of the epoch so far. Samples per
  // second are those since the line before, and what is left is guessed from all steps so far:
  //
  //   step 120/1950 epoch 2/5 loss 1.2345 accuracy 45.1 % 312 samples/s data 0.1 exposed 3.2 step 81.0 ms, 2 min 10
  //   s left
  std::string Line(const StepReport& report, MonotonicTime now);

 private:
  const ProgressOptions options_;
  const MonotonicTime begin_;
  MonotonicTime last_time_;  // of the last line
  int64_t last_step_ = 0;
  int64_t first_step_ = 0;  // above 1 in a job that was resumed; 0: none was reported
  int64_t epoch_ = 0;       // of the last report; this and the next two: what it has so far
  int64_t correct_ = 0;
  int64_t samples_ = 0;
};

// "2 h 5 min", "2 min 10 s", "8 s".
std::string FormatTimeLeft(absl::Duration left);

// One rank's. Not thread-safe.
class Seeing {
 public:
  // Opens what rank 0 writes. Errors: INVALID_ARGUMENT naming the flag of a file that cannot be
  // written.
  static absl::StatusOr<std::unique_ptr<Seeing>> Create(const SeeingOptions& options, int rank);

  // For whoever records; null without a trace.
  const std::shared_ptr<TraceRecorder>& recorder() const { return recorder_; }

  // The first step, which has this number, begins now.
  void Begin(const ProgressOptions& progress, int64_t first_step);

  // Prints, and writes scalars. What goes wrong is kept for Finish().
  void OnStep(const StepReport& report);

  // Of the trainer, on rank 0.
  void OnEvaluation(const EvaluationPoint& point);

  // Collective, after the last step of a job that went well: gathers and writes the trace. Errors:
  // the first of OnStep(); those of GatherTraces(); of the trace's file.
  absl::Status Finish(const Member& member, const Plan& plan, const TrainingResult& result);

 private:
  Seeing(const SeeingOptions& options, int rank) : options_(options), rank_(rank) {}

  absl::Status WriteTrace(const Member& member, const Plan& plan);
  void AddScalars(const StepReport& report);

  const SeeingOptions options_;
  const int rank_;
  std::shared_ptr<TraceRecorder> recorder_;
  std::unique_ptr<TensorboardFile> tensorboard_;  // rank 0, if wanted
  ProgressOptions progress_options_;
  absl::optional<Progress> progress_;
  absl::Status failed_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SEEING_H_
