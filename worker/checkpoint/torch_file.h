// State dicts in the files of Python's torch.save and torch.load.

#ifndef GRADSYNC_WORKER_CHECKPOINT_TORCH_FILE_H_
#define GRADSYNC_WORKER_CHECKPOINT_TORCH_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/host_tensor.h"
#include "worker/checkpoint/weight_dict.h"

namespace gradsync {

// A file that torch.load(..., weights_only=True) reads as a dict of tensors by name, in this order.
// Only what PyTorch 1.13 and 2.x both accept there is in it; beyond 4 GiB it is a zip64 archive.
absl::StatusOr<std::string> EncodeTorchFile(const std::vector<HostTensor>& tensors);

// The dict that torch.save, or LibTorch's torch::pickle_save, wrote, and the dicts that it has under
// strings, down to the fifth level. Other values beside weights, such as an optimizer's state or
// objects of any class, are passed over. What torch.load would read is read with the same values,
// whatever strides a tensor has and whichever storage it shares, or refused by name. Reads nothing
// outside `file` and runs nothing in it; the tensors that are read take at most four times its
// bytes and 16 MiB.
// Errors: INVALID_ARGUMENT for another format, naming it (the format before PyTorch 1.6,
// TorchScript, a compressed archive), and for a value that is no dict; DATA_LOSS for a file that is
// cut off or damaged.
absl::StatusOr<std::vector<WeightDict>> OpenTorchFile(absl::string_view file);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_TORCH_FILE_H_
