// Writes a job's checkpoints and starts it from them.

#ifndef GRADSYNC_WORKER_TRAIN_CHECKPOINTER_H_
#define GRADSYNC_WORKER_TRAIN_CHECKPOINTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "c10/core/Device.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/ddp_engine.h"
#include "torch/nn/module.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/train/checkpoint_options.h"
#include "worker/train/job_state.h"
#include "worker/train/training_record.h"

namespace gradsync {

// Where a job is after a step.
struct JobPosition {
  int64_t step = 0;
  // The end of the last batch that the step took, as the loader says it.
  int64_t epoch = 0;
  int64_t next_position = 0;
  bool last_of_epoch = false;
};

// One rank's part. A checkpoint has these files:
//
//   model.pt, model.safetensors   weights and buffers, by PyTorch's names
//   model_ema.pt, model_ema.safetensors   their average, if the job keeps one, by the same names
//   state.safetensors             all else that ranks share (worker/train/job_state.h)
//   residuals_0003.safetensors    what compression keeps on rank 3 alone, under topk
//
// Rank 0 reads and writes all of them but the last, so only rank 0 needs to see the folder, unless
// ranks keep residuals. Not thread-safe. Save() and Resume() are collective and wait for peers;
// the files are written while all wait.
class Checkpointer {
 public:
  // Rank 0 takes the folder for this job alone as long as the result lives, finds what the job starts
  // from and checks that it fits, and that a checkpoint can be written. `samples`: of the dataset;
  // `steps`: of the whole job.
  // Errors: INVALID_ARGUMENT naming the flag, what was expected and what came; NOT_FOUND and
  // DATA_LOSS naming the file.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(const CheckpointOptions& options,
                                                              int rank, int world_size,
                                                              int64_t samples, int64_t steps);

  // Rank 0: gives `module` the weights that the job starts from, and checks the rest of the state
  // by it. Errors: as Create().
  absl::Status LoadWeights(torch::nn::Module& module);

  // Whether LoadWeights() reads them from the file that init_from names. False on ranks other than 0.
  bool starts_from_weights() const {
    return rank_ == 0 && !start_.has_value() && !options_.init_from.empty();
  }

  // Collective over the job's ranks, after LoadWeights(), while `module` is whole on all of them:
  // gives it rank 0's parameters and buffers. DdpEngine::Create() does so among ranks
  // that train the same part of a model together; this is for jobs in which other ranks have other
  // parts, or train by themselves. Sends nothing where all ranks have drawn the same weights. A
  // piece that does not come within `timeout` is an error. Errors: those of SideChannel;
  // FAILED_PRECONDITION when rank 0's module has other tensors.
  absl::Status ShareWeights(const torch::nn::Module& module, SideChannel& ranks,
                            absl::Duration timeout) const;

  // Rank 0: whether the disk has room for one checkpoint of `module` and `slots` floats more for each
  // element of its parameters, and of its average where there is one. Says when there is room for
  // less than are to be kept. Errors: INVALID_ARGUMENT naming the folder, what is needed and what is
  // free.
  absl::Status CheckRoom(const torch::nn::Module& module, int slots, bool average) const;

  // Collective, after LoadWeights() and before DdpEngine::Create(), whose
  // DdpEngineOptions::earlier_chunk_bytes it is: what the job that goes on had; none for a new job.
  absl::StatusOr<absl::optional<int64_t>> EarlierChunkBytes(SideChannel& side_channel,
                                                            Deadline deadline) const;

  // Collective, after DdpEngine::Create(). The state that the job goes on from, which
  // optimizer, residuals and generators have afterwards; a state of step 0 for a new job. Where ranks
  // are to write residuals, also whether all of them can.
  absl::StatusOr<JobState> Resume(const torch::nn::Module& module, c10::Device device,
                                  DdpEngine& ddp, GradientSync& sync, SideChannel& side_channel,
                                  Deadline deadline);

  // Whether there is to be a checkpoint after this step.
  bool Due(const JobPosition& at) const;

  // Collective, between steps: writes one. `state` has what the trainer knows: skipped steps and
  // loss scaler and average. `tested` is an evaluation of both, if there was one. Errors: those of
  // the sync and of the file system; when rank 0 cannot write, all ranks fail.
  absl::Status Save(const JobPosition& at, JobState state,
                    const absl::optional<Evaluations>& tested, const torch::nn::Module& module,
                    c10::Device device, DdpEngine& ddp, GradientSync& sync,
                    SideChannel& side_channel);

 private:
  // Whether there will be a checkpoint. After FindStart().
  bool Writes() const;
  Checkpointer(const CheckpointOptions& options, int rank, int world_size, int64_t samples,
               int64_t steps);

  absl::Status TakeFolder();
  absl::Status FindStart();
  absl::Status FindNewest(const std::string& folder, absl::string_view flag);
  absl::Status CheckFolder() const;
  absl::Status CheckState(const JobState& state) const;
  absl::Status CheckData(const JobState& state) const;
  void SayOfOtherClasses(const JobState& state) const;
  absl::Status WhyNoFit(const absl::Status& loaded, const JobState& state) const;
  absl::StatusOr<std::vector<HostTensor>> GatherWeights(const torch::nn::Module& module,
                                                        DdpEngine& ddp, Deadline deadline) const;
  absl::Status WriteTensors(absl::string_view name, Safetensors weights);
  absl::Status Write(const JobState& state, std::vector<HostTensor> tensors,
                     const torch::nn::Module& module);
  absl::Status CheckFolderOfAll(SideChannel& side_channel, Deadline deadline);
  absl::Status ImportResiduals(const std::string& path, GradientSync& sync);
  absl::Status SaveResiduals(GradientSync& sync, SideChannel& side_channel);
  absl::StatusOr<CheckpointFile> WriteResiduals(const std::string& folder, GradientSync& sync);
  void Say(absl::string_view line) const;

  const CheckpointOptions options_;
  const int rank_;
  const int world_size_;
  const int64_t samples_;
  const int64_t steps_;
  const std::unique_ptr<FileSystem> files_;
  FolderLock lock_;  // rank 0: of the folder
  CheckpointFolder folder_;
  absl::optional<Checkpoint> start_;           // rank 0: what the job resumes from
  std::string start_state_;                    // rank 0: its state.safetensors
  absl::optional<int64_t> start_chunk_bytes_;  // rank 0: what that says of them
  int64_t best_step_ = 0;
  double best_accuracy_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_CHECKPOINTER_H_
