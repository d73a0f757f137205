#include "worker/train/step_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/plan/plan.h"
#include "worker/models/layers.h"
#include "worker/train/job_state.h"
#include "worker/train/training_clock.h"

namespace gradsync {

StepLoop::StepLoop(TrainingJob* job, JobEvaluation* evaluation)
    : job_(*job), evaluation_(*evaluation), skipped_steps_(job->skipped_steps()) {}

int64_t StepLoop::first_measured() const { return job_.first_step() + job_.options().warmup_steps; }

absl::Status StepLoop::Run(const StepReports::OnStep& on_step, TrainingResult* result) {
  measured_from_ = SpentSoFar(job_.sync());
  result->first_step = job_.first_step();
  result->last_step = job_.first_step() - 1;
  result->saved = job_.first_step() > 1;
  {
    const Activity::Work work(job_.activity());
    GS_RETURN_IF_ERROR(RunSteps(on_step, result));
  }
  GS_RETURN_IF_ERROR(job_.clock().Drain());
  return ReportSteps(/*most_pending=*/0, on_step);
}

absl::Status StepLoop::RunSteps(const StepReports::OnStep& on_step, TrainingResult* result) {
  const int64_t last = job_.options().evaluate_only ? 0 : job_.inputs().steps;
  for (int64_t step = job_.first_step(); step <= last; ++step) {
    if (job_.options().stop_before) {
      GS_ASSIGN_OR_RETURN(result->stopped, job_.options().stop_before(step));
      if (result->stopped) break;
    }
    if (step == first_measured()) GS_RETURN_IF_ERROR(BeginMeasuring());
    StepReport report;
    report.step = step;
    report.steps = job_.inputs().steps;
    if (job_.trace() != nullptr) GS_RETURN_IF_ERROR(job_.trace()->BeforeStep(step));
    if (job_.options().memory != nullptr) job_.options().memory->StartPeak();
    GS_RETURN_IF_ERROR(Step(&report));
    if (job_.activity() != nullptr) job_.activity()->Prove();
    if (job_.options().memory != nullptr && step >= first_measured()) {
      result->peak_tensor_bytes =
          std::max(result->peak_tensor_bytes, job_.options().memory->PeakBytes());
    }
    job_.reports().Add(std::move(report));
    {
      // Whoever reads what is written may take its time.
      const Activity::Wait wait(job_.activity());
      if (job_.trace() != nullptr) GS_RETURN_IF_ERROR(job_.trace()->AfterStep(step));
      GS_RETURN_IF_ERROR(ReportSteps(MostPending(step), on_step));
    }
    result->last_step = step;
    GS_RETURN_IF_ERROR(AfterStep(step, on_step, result));
  }
  if (result->stopped && !result->saved && result->last_step > 0 &&
      !job_.options().checkpoint.folder.empty()) {
    GS_RETURN_IF_ERROR(Save(absl::nullopt, result));
    result->saved = true;
  }
  return absl::OkStatus();
}

absl::Status StepLoop::BeginMeasuring() {
  GS_RETURN_IF_ERROR(job_.clock().Drain());
  measured_from_ = SpentSoFar(job_.sync());
  traffic_before_ = job_.share().traffic();
  return absl::OkStatus();
}

absl::Status StepLoop::Step(StepReport* report) {
  StepTimes& times = report->times;
  LossScaler* const scaler = job_.scaler();
  GS_RETURN_IF_ERROR(job_.clock().BeginStep());
  const MonotonicTime begin = MonotonicTime::Now();
  StepOptions step;
  step.step = report->step;
  step.lr = report->lr = LearningRate(job_.inputs().recipe, report->step - 1);
  step.max_norm = job_.options().max_norm;
  if (scaler != nullptr) {
    step.inverse_loss_scale = 1 / scaler->scale();
    // Beyond fp32 every loss is infinite, as fp32 has it, and the step is skipped.
    const bool finite = scaler->scale() <= std::numeric_limits<float>::max();
    job_.loss_scale().fill_(finite ? scaler->scale() : std::numeric_limits<double>::infinity());
  }
  if (job_.options().pool_statistics) PoolStatistics(job_.model(), true);
  const absl::Status computed = job_.gradients().Run(step, report);
  if (job_.options().pool_statistics) PoolStatistics(job_.model(), false);
  // LibTorch's words about it have lost the code.
  if (job_.moments() != nullptr) GS_RETURN_IF_ERROR(job_.moments()->status());
  GS_RETURN_IF_ERROR(job_.share().status());
  GS_RETURN_IF_ERROR(computed);
  {
    const Activity::Wait wait(job_.activity());
    GS_RETURN_IF_ERROR(job_.ddp().FinishStep(job_.NewDeadline()));
  }
  if (scaler != nullptr) {
    skipped_steps_ += job_.ddp().skipped();
    GS_RETURN_IF_ERROR(scaler->Update(job_.ddp().skipped()));
  }
  times.exposed += job_.ddp().timing().exposed;
  times.backward -= job_.ddp().timing().in_backward;
  times.update = job_.ddp().timing().update;
  const MonotonicTime finished = MonotonicTime::Now();
  times.update += job_.gradients().Stretch(times.update);
  GS_RETURN_IF_ERROR(UpdateAverage(&times.update));
  GS_RETURN_IF_ERROR(job_.clock().EndStep());
  RecordStep(job_.options().recorder.get(), report->step, begin, finished);
  return absl::OkStatus();
}

absl::Status StepLoop::UpdateAverage(absl::Duration* time) {
  WeightAverage* const average = job_.average();
  if (average == nullptr || job_.ddp().skipped()) return absl::OkStatus();
  const MonotonicTime start = MonotonicTime::Now();
  GS_RETURN_IF_ERROR(average->Update(job_.model()));
  *time += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

// Losses that may be on their way after a step.
size_t StepLoop::MostPending(int64_t step) const {
  if (!job_.options().report_all_after) return StepReports::kMostPending;
  return job_.options().report_all_after(step) ? 0 : std::numeric_limits<size_t>::max();
}

absl::Status StepLoop::ReportSteps(size_t most_pending, const StepReports::OnStep& on_step) {
  return job_.reports().Take(most_pending, [&](const StepReport& report) {
    evaluation_.NoteEnd(report.step, report.end);
    on_step(report);
  });
}

// What follows a step: evaluations and a checkpoint, if they are due.
absl::Status StepLoop::AfterStep(int64_t step, const StepReports::OnStep& on_step,
                                 TrainingResult* result) {
  result->saved = job_.checkpointer().Due(job_.gradients().position());
  if (evaluation_.KeepsModelOf(step)) evaluation_.KeepModel(step);
  const bool point = evaluation_.PointAfter(step);
  absl::optional<Evaluations> tested;
  if (point || (result->saved && job_.options().checkpoint.best)) {
    GS_RETURN_IF_ERROR(job_.clock().Drain());
    GS_RETURN_IF_ERROR(ReportSteps(/*most_pending=*/0, on_step));  // for when the step ended
    const auto evaluate = [&]() -> absl::Status {
      GS_ASSIGN_OR_RETURN(tested, evaluation_.EvaluateWithAll(step));
      return absl::OkStatus();
    };
    const absl::Status evaluated =
        BesideSteps(evaluate, point ? nullptr : &result->checkpoint_time);
    if (!evaluated.ok()) {
      // A test file that cannot be read is no reason to lose what was trained.
      if (!result->saved || !evaluation_.failed_on_all()) return evaluated;
      const absl::Status saved = Save(absl::nullopt, result);
      return saved.ok() ? evaluated
                        : absl::Status(evaluated.code(),
                                       absl::StrCat(evaluated.message(), "; ", saved.message()));
    }
  }
  if (point) evaluation_.AddPoint(step, *tested, &result->evaluations);
  return result->saved ? Save(tested, result) : absl::OkStatus();
}

// Collective. What `body` does is no part of any step, and its traffic and time are of none.
absl::Status StepLoop::BesideSteps(const std::function<absl::Status()>& body,
                                   absl::Duration* time) {
  // A disk may take its time. Those who wait for this rank have a deadline of their own.
  const Activity::Wait wait(job_.activity());
  GS_RETURN_IF_ERROR(job_.clock().Drain());
  job_.clock().Pause();
  const Spent before = SpentSoFar(job_.sync());
  if (!job_.options().allow_nonfinite) {
    GS_RETURN_IF_ERROR(job_.share().CheckFiniteParameters(
        job_.Where(job_.gradients().position().step), job_.NewDeadline()));
  }
  // Under asp the slowest may be far behind.
  GS_RETURN_IF_ERROR(job_.ddp().Settle(Deadline::In(TrainingJob::kLongWait)));
  GS_RETURN_IF_ERROR(body());
  const Spent after = SpentSoFar(job_.sync());
  if (time != nullptr) *time += (after - before).time;
  // As if it had taken nothing.
  measured_from_ = after - (before - measured_from_);
  return absl::OkStatus();
}

absl::Status StepLoop::Save(const absl::optional<Evaluations>& tested, TrainingResult* result) {
  ++result->checkpoints;
  return BesideSteps([&] { return WriteCheckpoint(tested); }, &result->checkpoint_time);
}

absl::Status StepLoop::WriteCheckpoint(const absl::optional<Evaluations>& tested) {
  JobState state;
  state.skipped_steps = skipped_steps_;
  if (LossScaler* const scaler = job_.scaler(); scaler != nullptr) {
    state.loss_scaler = scaler->state();
  }
  if (const WeightAverage* const average = job_.average(); average != nullptr) {
    state.average = average->Export();
    state.average_updates = average->updates();
  }
  return job_.checkpointer().Save(job_.gradients().position(), std::move(state), tested,
                                  job_.model(), job_.device(), job_.ddp(), job_.sync(),
                                  job_.side_channel());
}

}  // namespace gradsync
