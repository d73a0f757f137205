// A module's weights as tensors of files, by the names that PyTorch gives them.

#ifndef GRADSYNC_WORKER_TRAIN_STATE_DICT_H_
#define GRADSYNC_WORKER_TRAIN_STATE_DICT_H_

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch/nn/module.h"
#include "worker/checkpoint/host_tensor.h"

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STATE_DICT_H_
