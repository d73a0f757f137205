#include "worker/job.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "join/join.h"
#include "join/open_device.h"
#include "plan/codec.h"
#include "plan/job_spec.h"
#include "train/precision.h"
#include "train/trainer.h"
#include "worker/metrics.h"
#include "worker/progress.h"
#include "worker/seeing.h"

namespace gradsync {
namespace {

// A gradient that overflows fp16 is infinite on the way to the mean, and the step must be skipped
// by whoever runs the optimizer.
absl::Status ValidateFp16(const JobOptions& options) {
  if (options.trainer.compute.precision != Precision::kFp16) return absl::OkStatus();
  if (options.join.sync.job.update != UpdateSite::kWorker) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision: expected fp32 or bf16 with --update=owner"
                     " (owners cannot skip a step whose gradients overflow), found fp16"));
  }
  if (options.trainer.plan.codec.sparse()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision: expected fp32 or bf16 with --compression=",
                     CodecName(options.trainer.plan.codec),
                     " (it would keep infinite gradients for later steps), found fp16"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const JobOptions& options) {
  GS_RETURN_IF_ERROR(CheckJoin(options.join));
  GS_RETURN_IF_ERROR(ValidateFp16(options));
  return CheckClipping(options.join.sync.job, options.trainer.max_norm);
}

void PrintDevice(const GpuApi* gpu, int64_t every) {
  if (every == 0) return;
  std::printf("device %s\n", DescribeDevice(gpu).c_str());
  std::fflush(stdout);
}

void PrintResult(const TrainingResult& result) {
  if (result.test_samples > 0) {
    std::printf("test loss %.4f accuracy %.2f %%\n", result.test_loss, 100 * result.test_accuracy);
  }
  std::printf("final loss %.4f params_sha256 %s\n", result.final_loss,
              result.params_sha256.c_str());
  std::fflush(stdout);
}

class Job {
 public:
  explicit Job(JobOptions options) : options_(std::move(options)) {}

  // Everything before training. Nobody waits for a rank that fails here after it has reached the
  // store.
  absl::Status Prepare() {
    GS_RETURN_IF_ERROR(Validate(options_));
    GS_ASSIGN_OR_RETURN(seeing_, Seeing::Create(options_.seeing, rank()));
    options_.join.meet.recorder = options_.trainer.recorder = seeing_->recorder();
    options_.trainer.trace = options_.seeing.kineto;
    GS_RETURN_IF_ERROR(OpenDevices(&options_.join));
    options_.trainer.gpu = options_.join.sync.gpu;
    if (options_.trainer.gpu != nullptr || rank() == 0) {
      PrintDevice(options_.trainer.gpu.get(), options_.log_every);
    }
    options_.trainer.synchronised = options_.join.sync.job.topology != Topology::kLocal;
    GS_ASSIGN_OR_RETURN(trainer_,
                        Trainer::Create(options_.trainer, rank(), options_.join.meet.world_size));
    GS_ASSIGN_OR_RETURN(member_, Join(options_.join));
    const absl::Status bound = trainer_->Bind(&member_->sync(), &member_->side_channel());
    if (!bound.ok()) member_->Fail(bound).IgnoreError();
    return bound;
  }

  absl::Status Train() {
    ProgressOptions progress;
    progress.every = rank() == 0 ? options_.log_every : 0;
    progress.samples_per_step = options_.trainer.batch_size * options_.join.meet.world_size;
    progress.steps_per_epoch = trainer_->steps_per_epoch();
    seeing_->Begin(progress);
    const absl::StatusOr<TrainingResult> result =
        trainer_->Run([this](const StepReport& report) { seeing_->OnStep(report); });
    // What the group agreed on names the first cause; ours may be a consequence of it.
    if (!result.ok()) return member_->Fail(result.status());
    if (rank() == 0) PrintResult(*result);
    GS_RETURN_IF_ERROR(seeing_->Finish(*member_, trainer_->plan(), *result));
    if (!options_.metrics_json.empty()) {
      GS_RETURN_IF_ERROR(WriteWorkerMetrics(options_, member_->sync(), *trainer_, *result,
                                            member_->side_channel().bytes_sent(),
                                            options_.metrics_json));
    }
    member_->Leave();
    return absl::OkStatus();
  }

 private:
  int rank() const { return options_.join.meet.rank; }

  JobOptions options_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Seeing> seeing_;
};

}  // namespace

JobOutcome RunJob(JobOptions options) {
  Job job(std::move(options));
  JobOutcome outcome;
  outcome.status = job.Prepare();
  if (!outcome.status.ok()) return outcome;
  outcome.started = true;
  outcome.status = job.Train();
  return outcome;
}

}  // namespace gradsync
