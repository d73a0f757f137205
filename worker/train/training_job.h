// What a rank trains with, and how that is built: first by itself, from flags and files, then together
// with the others, over a backend. The loop of steps (step_loop.h), evaluations (job_evaluation.h)
// and the end (training_result.h) take it from here.

#ifndef GRADSYNC_WORKER_TRAIN_TRAINING_JOB_H_
#define GRADSYNC_WORKER_TRAIN_TRAINING_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "c10/core/Device.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/plan/optimizer_spec.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/models/create_model.h"
#include "worker/models/model.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_link.h"
#include "worker/train/batch_source.h"
#include "worker/train/channel_moments.h"
#include "worker/train/checkpointer.h"
#include "worker/train/gradient_computer.h"
#include "worker/train/job_inputs.h"
#include "worker/train/job_state.h"
#include "worker/train/kineto_trace.h"
#include "worker/train/loss_scaler.h"
#include "worker/train/model_share.h"
#include "worker/train/pipeline_stage.h"
#include "worker/train/step_reports.h"
#include "worker/train/trainer_options.h"
#include "worker/train/training_clock.h"
#include "worker/train/weight_average.h"

namespace gradsync {

// Not thread-safe. Owns all that it gives access to, but for what Bind() was given.
class TrainingJob {
 public:
  // For waits on all ranks, of whom some may be slow, or have many steps to go: whoever is lost,
  // stopped or stuck is noticed by the group's watch.
  static constexpr absl::Duration kLongWait = absl::Hours(24);

  // `replica`: which of those that train on other samples each this rank is. `inputs` are its.
  TrainingJob(const TrainerOptions& options, int rank, int replica, int world_size,
              JobInputs inputs);

  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  // Once, first: all of Trainer::Create() after the data were opened.
  absl::Status Prepare();

  // Trainer::Bind(), after which a job that goes on is where its checkpoint left it.
  absl::Status Bind(GradientSync* sync, SideChannel* side_channel, SideChannel* workers,
                    const PipelinePlace* place, const SlicePlace* slice);

  const TrainerOptions& options() const { return options_; }
  const JobInputs& inputs() const { return inputs_; }
  int rank() const { return rank_; }
  int replica() const { return replica_; }
  c10::Device device() const { return device_; }
  Activity* activity() const { return options_.activity.get(); }  // may be null
  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  // "step 3 of 8, rank 0", for messages.
  std::string Where(int64_t step) const;

  // While a step or an evaluation waits for its batch: DataLoaderOptions::while_waiting.
  absl::Status WaitForData(absl::string_view what, absl::Duration reading);

  // After Prepare().
  Model& model() const { return *model_; }
  BatchSource& source() { return source_; }
  const BatchSource& source() const { return source_; }
  TrainingClock& clock() { return clock_; }
  StepReports& reports() { return reports_; }
  GradientComputer& gradients() { return gradients_; }
  const GradientComputer& gradients() const { return gradients_; }
  Checkpointer& checkpointer() { return *checkpointer_; }
  KinetoTrace* trace() { return trace_.get(); }                               // null unless wanted
  LossScaler* scaler() { return scaler_.has_value() ? &*scaler_ : nullptr; }  // null: no scale
  // The scaler's scale, on the device, where a captured step reads it. Undefined without one.
  const at::Tensor& loss_scale() const { return loss_scale_; }

  // After Bind(). Null: `stage()` where the share is none, `average()` and `moments()` where the job
  // has no average of its weights and BatchNorm is not synchronised.
  GradientSync& sync() const { return *sync_; }
  SideChannel& side_channel() const { return *side_channel_; }
  DdpEngine& ddp() const { return *ddp_; }
  ModelShare& share() const { return *share_; }
  const PipelineStage* stage() const { return stage_; }
  WeightAverage* average() { return average_.has_value() ? &*average_ : nullptr; }
  const ChannelMoments* moments() const { return moments_.get(); }
  int64_t first_step() const { return first_step_; }        // to be trained
  int64_t skipped_steps() const { return skipped_steps_; }  // of those before

  // Collective. "rank 0 has A, rank 2 has B"; empty where all workers have the same.
  absl::StatusOr<std::string> DifferenceTo(const std::string& mine);

 private:
  StepReportsOptions ReportsOptions();
  bool OfTokens() const { return inputs_.train_tokens != nullptr; }
  bool ScalesLoss() const;
  bool UsesGraph() const;
  bool CopiesWeights() const;

  absl::Status PrepareSteps();
  absl::Status PrepareCheckpoints();
  absl::Status CheckGraph() const;
  absl::Status CheckTrace(int64_t first, int64_t last) const;
  absl::Status CheckRoomFor(const ModelOptions& model) const;
  absl::Status CheckKeptBytes() const;
  absl::Status MoveModel();
  at::Tensor ExampleInputs(int64_t samples) const;

  absl::Status MakeShare(const PipelinePlace* place, const SlicePlace* slice);
  absl::Status MakeStage(const PipelinePlace& place);
  absl::Status MakeSlice(const SlicePlace& place);
  absl::Status MakeDdp(bool whole);
  absl::Status SynchroniseNorms(SideChannel* channel);
  absl::Status ComparePrecisions();
  void ThrowAwayStep();
  absl::Status Resume();
  absl::Status TakeAverage(const JobState& state);

  const TrainerOptions options_;
  const int rank_;
  const int replica_;
  const c10::Device device_;
  GradientSync* sync_ = nullptr;
  SideChannel* side_channel_ = nullptr;
  const JobInputs inputs_;
  OptimizerSpec optimizer_;
  std::function<int(const TensorSpec&)> group_of_;  // DdpEngineOptions::group_of
  std::unique_ptr<ChannelMoments> moments_;
  std::shared_ptr<Model> model_;
  absl::optional<WeightAverage> average_;
  bool data_stalled_ = false;  // on_data_stall was told
  BatchSource source_;
  TrainingClock clock_;
  StepReports reports_;
  std::unique_ptr<KinetoTrace> trace_;
  absl::optional<LossScaler> scaler_;
  at::Tensor loss_scale_;
  std::unique_ptr<Checkpointer> checkpointer_;
  int64_t first_step_ = 1;
  int64_t skipped_steps_ = 0;
  std::unique_ptr<DdpEngine> ddp_;
  std::unique_ptr<ModelShare> share_;
  PipelineStage* stage_ = nullptr;
  GradientComputer gradients_;  // uses the above
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TRAINING_JOB_H_
