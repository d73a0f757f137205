#include "worker/train/training_result.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "worker/train/job_evaluation.h"
#include "worker/train/step_loop.h"
#include "worker/train/step_reports.h"
#include "worker/train/training_job.h"
#include "worker/train/training_record.h"

namespace gradsync {
namespace {

void FillSteps(const StepLog& log, int64_t first_measured, TrainingResult* result) {
  result->step_stride = log.stride();
  result->steps = log.added();
  result->measured_steps = std::max<int64_t>(0, result->last_step - first_measured + 1);
  for (const LoggedStep& step : log.kept()) {
    result->losses.push_back(step.loss);
    result->learning_rates.push_back(step.lr);
    result->step_ends.push_back(step.end);
    if (step.step >= first_measured) result->times.push_back(step.times);
  }
}

void FillTotals(const StepLoop& loop, TrainingJob& job, TrainingResult* result) {
  const Spent measured = SpentSoFar(job.sync()) - loop.measured_from();
  result->measured = measured.time;
  result->cpu = measured.cpu;
  result->wire = measured.wire;
  result->staleness = job.sync().staleness();
  result->skipped_steps = loop.skipped_steps();
  result->share_traffic = job.share().traffic() - loop.traffic_before();
  if (job.moments() != nullptr) {
    result->moment_exchanges = job.moments()->calls();
    result->moment_wait = job.moments()->waited();
  }
  if (job.scaler() != nullptr) result->loss_scale = job.scaler()->scale();
}

absl::Status MeanLosses(TrainingJob& job, TrainingResult* result) {
  const std::vector<double>& losses = result->losses;
  const size_t tail = std::max<size_t>(1, losses.size() / 10);
  double tail_loss = 0;
  for (size_t i = losses.size() - tail; i < losses.size(); ++i) {
    tail_loss += losses[i] / static_cast<double>(tail);
  }
  GS_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      job.side_channel().SumDoubles({job.reports().first_loss(), tail_loss}, job.NewDeadline()));
  result->first_loss = sums[0] / job.side_channel().world_size();
  result->final_loss = sums[1] / job.side_channel().world_size();
  return absl::OkStatus();
}

absl::Status CompareParameters(TrainingJob& job, const std::string& mine) {
  GS_ASSIGN_OR_RETURN(const std::string difference, job.DifferenceTo(mine));
  if (difference.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("parameters differ after the last step: ", difference));
}

// What follows the last step: mean losses, evaluation, the proof that all workers hold the same
// parameters.
absl::Status Conclude(TrainingJob& job, JobEvaluation& evaluation, TrainingResult* result) {
  if (!job.options().allow_nonfinite) {
    GS_RETURN_IF_ERROR(
        job.share().CheckFiniteParameters(job.Where(result->last_step), job.NewDeadline()));
  }
  // A job that is resumed after its last step has none.
  if (result->steps > 0) GS_RETURN_IF_ERROR(MeanLosses(job, result));
  GS_ASSIGN_OR_RETURN(result->epochs,
                      job.reports().tally().Share(job.side_channel(), job.NewDeadline()));
  GS_ASSIGN_OR_RETURN(result->params_sha256, job.share().ParamsSha256(job.NewDeadline()));
  if (job.options().synchronised) GS_RETURN_IF_ERROR(CompareParameters(job, result->params_sha256));
  result->averaged = job.average() != nullptr;
  if (job.options().evaluate_only || (job.options().evaluate && !result->stopped)) {
    GS_ASSIGN_OR_RETURN(const Evaluations tested, evaluation.NewestAfter(result->last_step));
    const double loss = tested.judged().loss;
    if (job.options().evaluate_only && !job.options().allow_nonfinite && !std::isfinite(loss)) {
      return absl::InternalError(absl::StrCat(
          "--evaluate_only: expected a finite test loss (or --allow_nonfinite), found ",
          std::isnan(loss) ? "NaN" : "infinity"));
    }
    result->weights_test_loss = tested.weights.loss;
    result->weights_test_accuracy = tested.weights.accuracy;
    result->test_samples = tested.judged().samples;
    result->test_loss = tested.judged().loss;
    result->test_accuracy = tested.judged().accuracy;
  }
  // Before the backend's, after which nobody would be told of a failure.
  GS_RETURN_IF_ERROR(job.share().Finish());
  return job.sync().Shutdown(job.NewDeadline());
}

}  // namespace

absl::Status EndJob(const StepLoop& loop, TrainingJob& job, JobEvaluation& evaluation,
                    TrainingResult* result) {
  FillSteps(job.reports().log(), loop.first_measured(), result);
  FillTotals(loop, job, result);
  // Under ssp and asp others may have many steps to go, but they live: a lost one ends the wait.
  GS_RETURN_IF_ERROR(job.ddp().Settle(Deadline::In(TrainingJob::kLongWait)));
  GS_RETURN_IF_ERROR(evaluation.EvaluateKept(&result->evaluations));
  return Conclude(job, evaluation, result);
}

}  // namespace gradsync
