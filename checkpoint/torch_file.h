// State dicts in the files of Python's torch.save and torch.load.

#ifndef GRADSYNC_CHECKPOINT_TORCH_FILE_H_
#define GRADSYNC_CHECKPOINT_TORCH_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/host_tensor.h"

namespace gradsync {

// A file that torch.load(..., weights_only=True) reads as a dict of tensors by name, in this order.
// Only what PyTorch 1.13 and 2.x both accept there is in it; beyond 4 GiB it is a zip64 archive.
absl::StatusOr<std::string> EncodeTorchFile(const std::vector<HostTensor>& tensors);

// The tensors of a state dict that torch.save wrote, in its order, contiguous, whatever their
// strides and whichever storage they share. A dict whose entry "state_dict" or "model" is the state
// dict is as good; other entries beside it are left alone. Reads nothing outside `file` and runs
// nothing in it.
// Errors: INVALID_ARGUMENT for another format, naming it (the format before PyTorch 1.6,
// TorchScript), and for what is no tensor, naming its key; DATA_LOSS for a file that is cut off or
// damaged, or whose sizes do not fit.
absl::StatusOr<std::vector<HostTensor>> DecodeTorchFile(absl::string_view file);

}  // namespace gradsync

#endif  // GRADSYNC_CHECKPOINT_TORCH_FILE_H_
