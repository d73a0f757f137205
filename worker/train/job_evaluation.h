// A job's evaluations on its test split: in the course of training, by all workers together or, where
// these are at different steps, of models that rank 0 keeps until the end; and after the last step.

#ifndef GRADSYNC_WORKER_TRAIN_JOB_EVALUATION_H_
#define GRADSYNC_WORKER_TRAIN_JOB_EVALUATION_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "worker/train/training_job.h"
#include "worker/train/training_record.h"

namespace gradsync {

// Not thread-safe. All methods are for between steps, when nothing is in flight. What is collective
// waits for peers. Errors: those of EvaluateModel() and of the exchange; INTERNAL when LibTorch
// throws.
class JobEvaluation {
 public:
  // `job` must outlive this object, and be bound before its first use.
  explicit JobEvaluation(TrainingJob* job) : job_(*job) {}

  // Whether all evaluate together after this step, for TrainerOptions::evaluate_every.
  bool PointAfter(int64_t step) const;

  // Whether this rank keeps the model as it is after this step instead.
  bool KeepsModelOf(int64_t step) const;

  // Copies what a later evaluation needs: one now would hold up rank 0, while others go on.
  void KeepModel(int64_t step);

  // StepReport::end of a step, in order, as soon as it is known.
  void NoteEnd(int64_t step, absl::Duration end);

  // Collective. What the model holds now, after `step`, and its average, if there is one, with rank 0's
  // buffers.
  absl::StatusOr<Evaluations> EvaluateWithAll(int64_t step);

  // Likewise; but one that was made after the same step is as good.
  absl::StatusOr<Evaluations> NewestAfter(int64_t step);

  // Whether the error that the last evaluation returned is all ranks', none of which waits for another.
  bool failed_on_all() const { return failed_on_all_; }

  // Adds an evaluation after `step`, whose end was the newest to be noted, to those of the job.
  void AddPoint(int64_t step, const Evaluations& tested,
                std::vector<EvaluationPoint>* points) const;

  // Collective, after the last step. Rank 0 evaluates what it kept, alone, while the others wait; the
  // model is then as before.
  absl::Status EvaluateKept(std::vector<EvaluationPoint>* points);

 private:
  // A model as it was after some step, on rank 0.
  struct KeptModel {
    std::vector<at::Tensor> tensors;  // its parameters and buffers
    absl::Duration end;               // of the step, when that is known
  };

  bool Due(int64_t step) const;
  absl::StatusOr<Evaluation> EvaluateModelNow();
  absl::StatusOr<Evaluation> EvaluateOnTest(SideChannel& side_channel, Deadline deadline);
  absl::Status SwapAverage();
  absl::Status SetModel(const std::vector<at::Tensor>& values);
  void Say(const EvaluationPoint& point, std::vector<EvaluationPoint>* points) const;

  TrainingJob& job_;
  bool failed_on_all_ = false;
  absl::Duration newest_end_;  // as NoteEnd() has it
  absl::optional<std::pair<int64_t, Evaluations>>
      newest_;                         // of EvaluateWithAll(): after which step
  std::map<int64_t, KeptModel> kept_;  // rank 0, by step
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_JOB_EVALUATION_H_
