// What a job shows while it runs and leaves to look at: progress, TensorBoard's scalars, and the
// trace of all processes.

#ifndef GRADSYNC_WORKER_SEEING_H_
#define GRADSYNC_WORKER_SEEING_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/trace_recorder.h"
#include "core/plan/plan.h"
#include "gradsync/join/join.h"
#include "worker/progress.h"
#include "worker/seeing_options.h"
#include "worker/trace/tensorboard_file.h"
#include "worker/train/trainer.h"

namespace gradsync {

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
