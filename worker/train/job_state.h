// What checkpoints keep of a job: its weights, and what else it needs to go on.

#ifndef GRADSYNC_WORKER_TRAIN_JOB_STATE_H_
#define GRADSYNC_WORKER_TRAIN_JOB_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "c10/core/Device.h"
#include "core/optim/optimizer_state.h"
#include "torch/nn/module.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/data/dataset.h"
#include "worker/train/loss_scaler.h"

namespace gradsync {

// A module's weights as tensors of files, by the names that PyTorch gives them.

// Copies a tensor from wherever it is. Errors: INVALID_ARGUMENT for a type that no file has;
// INTERNAL when LibTorch throws.
absl::StatusOr<HostTensor> ToHost(const std::string& name, const at::Tensor& tensor);

// A contiguous tensor on the CPU, with a copy of the data.
at::Tensor FromHost(const HostTensor& tensor);

// Parameters and buffers in the order of Python's state_dict(): of each module, before those of the
// modules in it. Errors: those of ToHost().
absl::StatusOr<std::vector<HostTensor>> StateDictOf(const torch::nn::Module& module);

// Names and sizes of what StateDictOf() gives.
std::vector<TensorShape> ShapesOf(const torch::nn::Module& module);

// Sets the module's parameters and buffers, in place, wherever they are; values of other types are
// converted. Names and sizes must be the module's, all of them but those in `left`, as with
// PyTorch's strict=True; if they are not, nothing is changed. Errors: INVALID_ARGUMENT with what is
// missing, unexpected or of other sizes, the first few of each by name; INTERNAL when LibTorch
// throws.
absl::Status LoadStateDict(const std::vector<HostTensor>& tensors, torch::nn::Module& module,
                           const std::vector<std::string>& left = {});

// What a job needs besides its weights to go on as if it had never stopped.
struct JobState {
  int64_t step = 0;  // the last one done; 0: the job has not begun
  // Where each rank's next batch begins (DataLoaderOptions::start_epoch, start_position).
  int64_t epoch = 0;
  int64_t position = 0;
  int64_t skipped_steps = 0;  // of `step`, those that a loss scale skipped
  absl::optional<LossScaler::State> loss_scaler;
  OptimizerState optimizer;
  std::map<std::string, at::Tensor> average;  // WeightAverage::Export(), if the job has one
  int64_t average_updates = 0;
  int world_size = 1;
  int64_t samples = 0;  // of the dataset; 0 in files from before it was kept
  // Plan::chunk_bytes(), which bits depend on; none in files from before it was kept.
  absl::optional<int64_t> chunk_bytes;
  int threads = 0;                  // rank 0's, of computation; 0 in files from before it was kept
  std::vector<std::string> random;  // by rank, RandomState()
  bool residuals = false;           // whether each rank has a file of its own, of residuals

  // Of the checkpoints that were evaluated, the most accurate; best_step 0: none was.
  int64_t best_step = 0;
  double best_accuracy = 0;

  std::map<std::string, std::string> flags;  // CheckpointOptions::job
  // CheckpointOptions::data; empty in files from before it was kept, which have "data" in `flags`.
  std::map<std::string, DataIdentity> data;
};

// As a file in the safetensors format: numbers as metadata, one tensor for each of the optimizer's
// slots, with the sizes of its parameter, which is found in `module` by name. Errors: INTERNAL when
// LibTorch throws.
absl::StatusOr<std::string> EncodeJobState(const JobState& state, const torch::nn::Module& module);

// The other way. A slot that `module` has no parameter for keeps its elements as they are in the
// file, for ImportState() to refuse. Errors: DATA_LOSS for what is no such file.
absl::StatusOr<JobState> DecodeJobState(absl::string_view file, const torch::nn::Module& module);

// The state of the generators from which LibTorch draws on the CPU and, if that is another, on
// `device`.
absl::StatusOr<std::string> RandomState(c10::Device device);

// Errors: DATA_LOSS when LibTorch does not take it.
absl::Status SetRandomState(absl::string_view state, c10::Device device);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_JOB_STATE_H_
