#ifndef GRADSYNC_CHECKPOINT_READ_WEIGHTS_H_
#define GRADSYNC_CHECKPOINT_READ_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/host_tensor.h"

namespace gradsync {

// The tensors of a file of torch.save or of safetensors; which of them it is, its first bytes say.
// A prefix "module." that all names have, as Python's DistributedDataParallel puts it, is taken
// off. Errors: as DecodeTorchFile() and DecodeSafetensors(), with the path in front; those of the
// file, such as NOT_FOUND.
absl::StatusOr<std::vector<HostTensor>> ReadWeights(const std::string& path);

}  // namespace gradsync

#endif  // GRADSYNC_CHECKPOINT_READ_WEIGHTS_H_
