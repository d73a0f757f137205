#include "worker/train/job_evaluation.h"

#include "core/base/status_macros.h"
#include "worker/train/evaluate.h"

namespace gradsync {
namespace {

std::vector<at::Tensor> TensorsOf(const Model& model) {
  std::vector<at::Tensor> tensors = model.parameters();
  for (const at::Tensor& buffer : model.buffers()) tensors.push_back(buffer);
  return tensors;
}

std::vector<at::Tensor> CopyOf(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

}  // namespace

bool JobEvaluation::Due(int64_t step) const {
  const int64_t every = job_.options().evaluate_every;
  return every > 0 && step % every == 0;
}

// Rank 0's result is the job's, where workers train by themselves.
bool JobEvaluation::PointAfter(int64_t step) const {
  return job_.options().one_pace && Due(step) && (job_.options().synchronised || job_.rank() == 0);
}

bool JobEvaluation::KeepsModelOf(int64_t step) const {
  return job_.rank() == 0 && !job_.options().one_pace && Due(step);
}

void JobEvaluation::KeepModel(int64_t step) {
  job_.clock().Pause();
  kept_[step].tensors = CopyOf(TensorsOf(job_.model()));
}

void JobEvaluation::NoteEnd(int64_t step, absl::Duration end) {
  newest_end_ = end;
  if (KeepsModelOf(step)) kept_[step].end = end;
}

absl::StatusOr<Evaluations> JobEvaluation::EvaluateWithAll(int64_t step) {
  Evaluations tested;
  GS_ASSIGN_OR_RETURN(tested.weights, EvaluateModelNow());
  if (job_.average() != nullptr) {
    GS_RETURN_IF_ERROR(SwapAverage());
    const absl::StatusOr<Evaluation> average = EvaluateModelNow();
    GS_RETURN_IF_ERROR(SwapAverage());  // also for a checkpoint after a failure
    GS_RETURN_IF_ERROR(average.status());
    tested.average = *average;
  }
  newest_.emplace(step, tested);
  return tested;
}

absl::StatusOr<Evaluations> JobEvaluation::NewestAfter(int64_t step) {
  if (newest_.has_value() && newest_->first == step) return newest_->second;
  return EvaluateWithAll(step);
}

absl::StatusOr<Evaluation> JobEvaluation::EvaluateModelNow() {
  GS_RETURN_IF_ERROR(job_.ddp().BroadcastBuffers(job_.NewDeadline()));
  return EvaluateOnTest(job_.side_channel(), Deadline::In(TrainingJob::kLongWait));
}

absl::StatusOr<Evaluation> JobEvaluation::EvaluateOnTest(SideChannel& side_channel,
                                                         Deadline deadline) {
  const Mesh& mesh = job_.options().pipeline.mesh;
  EvaluationShare own;
  own.batch_size = job_.options().batch_size;
  own.threads = job_.source().threads();
  own.prefetch_bytes = job_.options().prefetch_bytes;
  own.rank = mesh.cuts_model() ? job_.replica() : side_channel.rank();
  own.ranks = mesh.cuts_model() ? mesh.replicas() : side_channel.world_size();
  own.logits = [this](const at::Tensor& inputs) { return job_.share().TestLogits(inputs); };
  own.check = [this] { return job_.sync().status(); };
  own.while_waiting = [this](absl::string_view what, absl::Duration reading) {
    return job_.WaitForData(what, reading);
  };
  own.in_step = job_.share().tests_in_step();
  own.activity = job_.activity();
  // Where several ranks compute one batch, the others of them would wait for it.
  if (!mesh.cuts_model()) own.failed_on_all = &failed_on_all_;
  if (job_.inputs().train_tokens != nullptr) {
    return EvaluateModel(job_.model(), job_.inputs().test_tokens, own, side_channel, deadline);
  }
  return EvaluateModel(job_.model(), job_.inputs().test, own, side_channel, deadline);
}

absl::Status JobEvaluation::SwapAverage() {
  GS_RETURN_IF_ERROR(job_.average()->Swap(job_.model()));
  return job_.ddp().RefreshCopies();
}

absl::Status JobEvaluation::SetModel(const std::vector<at::Tensor>& values) {
  const std::vector<at::Tensor> tensors = TensorsOf(job_.model());
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(values[i]);
  return job_.ddp().RefreshCopies();
}

void JobEvaluation::AddPoint(int64_t step, const Evaluations& tested,
                             std::vector<EvaluationPoint>* points) const {
  Say({step, newest_end_, tested}, points);
}

void JobEvaluation::Say(const EvaluationPoint& point, std::vector<EvaluationPoint>* points) const {
  points->push_back(point);
  if (job_.rank() == 0 && job_.options().on_evaluation) job_.options().on_evaluation(point);
}

absl::Status JobEvaluation::EvaluateKept(std::vector<EvaluationPoint>* points) {
  if (job_.options().one_pace || job_.options().evaluate_every == 0) return absl::OkStatus();
  if (!kept_.empty()) {
    SideChannel alone(WorkerGroup(), "curve");
    const std::vector<at::Tensor> last = CopyOf(TensorsOf(job_.model()));
    for (const auto& [step, kept] : kept_) {
      GS_RETURN_IF_ERROR(SetModel(kept.tensors));
      Evaluations tested;
      GS_ASSIGN_OR_RETURN(tested.weights, EvaluateOnTest(alone, Deadline::Never()));
      Say({step, kept.end, tested}, points);
    }
    GS_RETURN_IF_ERROR(SetModel(last));
  }
  return job_.side_channel().Barrier(Deadline::In(TrainingJob::kLongWait));
}

}  // namespace gradsync
