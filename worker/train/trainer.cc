#include "worker/train/trainer.h"

#include <utility>

#include "core/base/status_macros.h"
#include "worker/data/dataset.h"
#include "worker/train/job_evaluation.h"
#include "worker/train/job_inputs.h"
#include "worker/train/pipeline_stage.h"
#include "worker/train/step_loop.h"
#include "worker/train/training_job.h"

namespace gradsync {
namespace {

// The job as its parts have it: what is built, the loop of steps, and the end.
class TrainerImpl : public Trainer {
 public:
  TrainerImpl(const TrainerOptions& options, int rank, int replica, int world_size,
              JobInputs inputs)
      : job_(options, rank, replica, world_size, std::move(inputs)) {}

  absl::Status Prepare() { return job_.Prepare(); }

  absl::Status Bind(GradientSync* sync, SideChannel* side_channel, SideChannel* workers,
                    const PipelinePlace* place, const SlicePlace* slice) override {
    return job_.Bind(sync, side_channel, workers, place, slice);
  }

  absl::StatusOr<TrainingResult> Run(
      const std::function<void(const StepReport&)>& on_step) override {
    TrainingResult result;
    JobEvaluation evaluation(&job_);
    StepLoop loop(&job_, &evaluation);
    GS_RETURN_IF_ERROR(loop.Run(on_step, &result));
    GS_RETURN_IF_ERROR(EndJob(loop, job_, evaluation, &result));
    return result;
  }

  const Plan& plan() const override { return job_.ddp().plan(); }

  int loader_threads() const override { return job_.source().loader_threads(); }

  int64_t first_step() const override { return job_.first_step(); }

  int64_t steps_per_epoch() const override { return job_.inputs().steps_per_epoch; }

  const std::map<std::string, DataIdentity>& data() const override {
    return job_.inputs().identities;
  }

  std::vector<std::string> data_remarks() const override {
    std::vector<std::string> remarks;
    // An evaluation alone has one split in both places.
    const ImageDataset* const test =
        job_.inputs().test == job_.inputs().train ? nullptr : job_.inputs().test.get();
    for (const ImageDataset* split :
         {static_cast<const ImageDataset*>(job_.inputs().train.get()), test}) {
      if (split == nullptr) continue;
      for (std::string& line : split->remarks()) remarks.push_back(std::move(line));
    }
    return remarks;
  }

  std::vector<std::string> notices() const override {
    return NoticesOn(job_.options(), job_.inputs());
  }

  std::string split() const override {
    return job_.stage() == nullptr ? job_.gradients().split()
                                   : SplitToString(job_.stage()->split());
  }

 private:
  TrainingJob job_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options, int rank,
                                                         int world_size) {
  const Mesh& mesh = options.pipeline.mesh;
  const bool cut = mesh.cuts_model();
  // All stages of a pipeline go through the same samples, and all slices of a model.
  const int replica = cut ? mesh.Coordinate(rank, mesh.samples()) : rank;
  const int replicas = cut ? mesh.replicas() : world_size;
  GS_ASSIGN_OR_RETURN(JobInputs inputs, OpenJobInputs(options, replica, replicas));
  auto trainer =
      std::make_unique<TrainerImpl>(options, rank, replica, world_size, std::move(inputs));
  GS_RETURN_IF_ERROR(trainer->Prepare());
  return trainer;
}

}  // namespace gradsync
