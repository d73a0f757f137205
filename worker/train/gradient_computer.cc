#include "worker/train/gradient_computer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "worker/pipeline/split.h"
#include "worker/train/pipeline_step.h"
#include "worker/train/step_times.h"
#include "worker/train/training_clock.h"

namespace gradsync {

absl::Status GradientComputer::Prepare(std::shared_ptr<Model> model, const ModelOptions& made_from,
                                       std::function<at::Tensor()> example) {
  model_ = std::move(model);
  if (options_.data_parallel > 1) {
    DataParallelOptions replicas;
    replicas.replicas = options_.data_parallel;
    replicas.threads = options_.threads;
    replicas.part = inputs_.accumulation.batch_size;
    replicas.model = made_from;
    replicas.compute = options_.compute;
    replicas.activity = options_.activity.get();
    GS_ASSIGN_OR_RETURN(replicas_, DataParallelStep::Create(replicas, model_));
  }
  if (options_.model_parallel > 1) {
    LocalPipelineOptions stages;
    stages.stages = options_.model_parallel;
    stages.threads = options_.threads;
    stages.pipeline = options_.pipeline;
    stages.compute = options_.compute;
    stages.example = std::move(example);
    GS_ASSIGN_OR_RETURN(local_pipeline_, LocalPipeline::Create(stages, model_));
  }
  return absl::OkStatus();
}

void GradientComputer::Begin(DdpEngine* ddp, ModelShare* share, PipelineStage* stage,
                             bool use_graph) {
  ddp_ = ddp;
  share_ = share;
  stage_ = stage;
  if (options_.record_gradients) gradient_done_.resize(ddp->plan().tensors().size());
  step_graph_ = std::make_unique<StepGraph>(
      ddp_, use_graph, [this](const Batch& batch) { return ForwardBackward(batch); });
}

absl::Status GradientComputer::Run(const StepOptions& step, StepReport* report) {
  if (stage_ != nullptr || local_pipeline_ != nullptr) return ComputeStages(step, report);
  if (replicas_ != nullptr) return ComputeReplicas(step, report);
  return ComputeBatches(step, report);
}

void GradientComputer::OnGradient(int parameter) {
  CountActivity(options_.activity.get());
  slow_down_.CatchUp();
  if (options_.record_gradients) gradient_done_[parameter] = MonotonicTime::Now();
}

std::string GradientComputer::split() const {
  return local_pipeline_ == nullptr ? std::string() : SplitToString(local_pipeline_->split());
}

// Before each forward. Not part of what a graph replays: that reads the new seed.
absl::Status GradientComputer::SeedModel(int64_t step, int64_t micro_batch) {
  try {
    model_->BeginStep(StepSeed(options_.seed, replica_, step, micro_batch));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("step ", step, ": LibTorch: ", FirstLine(e.what())));
  }
  return absl::OkStatus();
}

// The step's batch `i`, the next one, entered into the job's books. With the first it is known
// how many the step has. With replicas each part of a batch counts as one.
absl::StatusOr<Batch> GradientComputer::NextBatch(int64_t i, StepReport* report) {
  const MonotonicTime start = MonotonicTime::Now();
  GS_ASSIGN_OR_RETURN(Batch batch, source_.Next());
  CountActivity(options_.activity.get());
  position_ = {report->step, batch.epoch, batch.next_position, batch.last_of_epoch};
  if (i == 0) batches_ = inputs_.accumulation.BatchesOfStepAt(batch.position);
  report->times.data += MonotonicTime::Now() - start;
  report->epoch = batch.epoch + 1;
  report->samples += batch.labels.numel();
  const int64_t parts = replicas_ != nullptr ? replicas_->PartsOf(batch) : 1;
  const bool last = i + parts == batches_;
  if (last && (batch.last_of_epoch || report->step == report->steps)) report->epoch_end.emplace();
  return batch;
}

// The step in stages, whose micro-batches are its batches: this rank's stage, or all of them. Then
// the times are the first stage's, which ends last.
absl::Status GradientComputer::ComputeStages(const StepOptions& options, StepReport* report) {
  GS_ASSIGN_OR_RETURN(Batch first, NextBatch(0, report));
  PipelineStep step;
  step.options = options;
  step.micro_batches = batches_;
  step.label_smoothing = options_.label_smoothing;
  step.next = [&](int64_t i) -> absl::StatusOr<Batch> {
    if (i > 0) return NextBatch(i, report);
    return std::move(first);
  };
  step.seed = [&](int64_t i) { return StepSeed(options_.seed, replica_, options.step, i); };
  std::vector<StageTimes> stages(1);
  GS_ASSIGN_OR_RETURN(const BatchFigures figures, stage_ != nullptr
                                                      ? stage_->Run(step, &stages[0])
                                                      : local_pipeline_->Run(*ddp_, step, &stages));
  StepTimes& times = report->times;
  times.forward = stages[0].forward;
  times.backward = stages[0].backward;
  times.exposed = stages[0].waited;
  if (local_pipeline_ != nullptr) {
    for (const StageTimes& own : stages) times.stages.push_back(own.forward + own.backward);
  }
  FigureSum sum;
  return Count(figures, /*last=*/true, &sum);
}

// The step by replicas, each of which has a part of each batch.
absl::Status GradientComputer::ComputeReplicas(const StepOptions& step, StepReport* report) {
  StepTimes& times = report->times;
  FigureSum figures;
  batches_ = 1;
  for (int64_t i = 0; i < batches_;) {
    ReplicaPoints points;
    points.begin = MonotonicTime::Now();
    DataParallelStep::Work work;
    work.step = step;
    GS_ASSIGN_OR_RETURN(work.batch, NextBatch(i, report));
    points.have_data = MonotonicTime::Now();
    work.first_part = i;
    work.parts = batches_;
    work.label_smoothing = options_.label_smoothing;
    work.seed = [&](int64_t part) {
      return StepSeed(options_.seed, replica_, step.step, /*micro_batch=*/part);
    };
    slow_down_.Begin(options_.straggler.Factor(rank_, report->step));
    GS_RETURN_IF_ERROR(replicas_->Run(*ddp_, work, &figures, &times.replicas, &points));
    slow_down_.End();
    const MonotonicTime done = MonotonicTime::Now();
    RecordReplicas(options_.recorder.get(), step.step, points);
    times.forward += points.forward_done - points.have_data;
    times.backward += done - points.forward_done;
    i += replicas_->PartsOf(work.batch);
  }
  FigureSum step_figures;
  return Count(figures.OfStep(), /*last=*/true, &step_figures);
}

// Forward and backward of the step's batches. Those before the last only add up gradients.
absl::Status GradientComputer::ComputeBatches(const StepOptions& step, StepReport* report) {
  FigureSum figures;
  batches_ = 1;
  for (int64_t i = 0; i < batches_; ++i) {
    const MonotonicTime start = MonotonicTime::Now();
    GS_ASSIGN_OR_RETURN(const Batch batch, NextBatch(i, report));
    const MonotonicTime have_data = MonotonicTime::Now();
    const bool last = i + 1 == batches_;
    const absl::Duration before = report->times.forward + report->times.backward;

    GS_RETURN_IF_ERROR(SeedModel(step.step, /*micro_batch=*/i));
    forward_done_ = MonotonicTime::InfinitePast();
    slow_down_.Begin(options_.straggler.Factor(rank_, report->step));
    GS_ASSIGN_OR_RETURN(const BatchFigures own,
                        last ? step_graph_->Run(step, batch) : AddGradients(step, batch));
    GS_RETURN_IF_ERROR(Count(own, last, &figures));
    slow_down_.End();
    const MonotonicTime backward_done = MonotonicTime::Now();
    // A graph has no forward of its own.
    forward_done_ = std::max(forward_done_, have_data);
    RecordBatch(options_.recorder.get(), step.step,
                {start, have_data, forward_done_, backward_done});
    report->times.forward += forward_done_ - have_data;
    report->times.backward += backward_done - forward_done_;
    if (last) {
      for (MonotonicTime done : gradient_done_) {
        report->gradient_ready.push_back(before + (done - have_data));
      }
    }
    // Before the wait for buckets: the next batch crosses the bus meanwhile.
    GS_RETURN_IF_ERROR(source_.Prefetch());
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchFigures> GradientComputer::AddGradients(const StepOptions& step,
                                                            const Batch& batch) {
  const auto no_sync = ddp_->NoSync();
  try {
    return ForwardBackward(batch);
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("step ", step.step, ": LibTorch: ", FirstLine(e.what())));
  }
}

// Throws what LibTorch throws.
BatchFigures GradientComputer::ForwardBackward(const Batch& batch) {
  const at::Tensor logits = share_->Forward(batch.images);
  const auto [loss, hits] = share_->Loss(logits, batch.labels, options_.label_smoothing);
  const at::Tensor correct = hits.to(at::kFloat);
  slow_down_.CatchUp();
  forward_done_ = MonotonicTime::Now();
  at::Tensor objective = loss;
  if (batches_ > 1) objective = objective / static_cast<double>(batches_);
  if (loss_scale_.defined()) objective = objective * loss_scale_;
  share_->Backward(objective);
  return {loss.detach(), correct};
}

// Adds a batch's figures to the step's, which are read when they are whole.
absl::Status GradientComputer::Count(const BatchFigures& own, bool last, FigureSum* sum) {
  BatchFigures figures;
  try {
    sum->Add(own);
    if (!last) return absl::OkStatus();
    figures = sum->OfStep();
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("the figures of a step: LibTorch: ", FirstLine(e.what())));
  }
  return reports_.AddFigures(figures);
}

}  // namespace gradsync
