// The loop of a job's steps: each step, what is said of it, and what follows it when that is due, an
// evaluation or a checkpoint.

#ifndef GRADSYNC_WORKER_TRAIN_STEP_LOOP_H_
#define GRADSYNC_WORKER_TRAIN_STEP_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "worker/train/job_evaluation.h"
#include "worker/train/step_reports.h"
#include "worker/train/step_times.h"
#include "worker/train/training_job.h"
#include "worker/train/training_record.h"
#include "worker/train/training_result.h"

namespace gradsync {

// Not thread-safe.
class StepLoop {
 public:
  // Both are of the same job, which is bound, and must outlive this object.
  StepLoop(TrainingJob* job, JobEvaluation* evaluation);

  // Collective, once: all steps from job->first_step() on, or as many as stop_before lets begin, and
  // then all reports. Begins `result` with what only the loop knows, from first_step to
  // checkpoint_time. Errors: those of Trainer::Run().
  absl::Status Run(const StepReports::OnStep& on_step, TrainingResult* result);

  // For the result, after Run(). What was spent before the measured steps, and since then on none of
  // them; and what ModelShare::traffic() was before the first of them.
  int64_t first_measured() const;
  const Spent& measured_from() const { return measured_from_; }
  const ShareTraffic& traffic_before() const { return traffic_before_; }
  int64_t skipped_steps() const { return skipped_steps_; }  // of the whole job

 private:
  absl::Status RunSteps(const StepReports::OnStep& on_step, TrainingResult* result);
  absl::Status BeginMeasuring();
  absl::Status Step(StepReport* report);
  absl::Status UpdateAverage(absl::Duration* time);
  absl::Status AfterStep(int64_t step, const StepReports::OnStep& on_step, TrainingResult* result);
  absl::Status BesideSteps(const std::function<absl::Status()>& body, absl::Duration* time);
  absl::Status Save(const absl::optional<Evaluations>& tested, TrainingResult* result);
  absl::Status WriteCheckpoint(const absl::optional<Evaluations>& tested);
  size_t MostPending(int64_t step) const;
  absl::Status ReportSteps(size_t most_pending, const StepReports::OnStep& on_step);

  TrainingJob& job_;
  JobEvaluation& evaluation_;
  Spent measured_from_;
  ShareTraffic traffic_before_;
  int64_t skipped_steps_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STEP_LOOP_H_
