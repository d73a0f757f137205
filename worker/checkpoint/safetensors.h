// The safetensors format: 8 bytes with the header's length, little endian; the header, JSON with
// each tensor's dtype, shape and data_offsets; then the tensors' bytes, without holes.

#ifndef GRADSYNC_WORKER_CHECKPOINT_SAFETENSORS_H_
#define GRADSYNC_WORKER_CHECKPOINT_SAFETENSORS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/host_tensor.h"

namespace gradsync {

struct Safetensors {
  std::vector<HostTensor> tensors;              // as their bytes lie in the file
  std::map<std::string, std::string> metadata;  // what the header has as __metadata__
};

// The header ends at a multiple of 8 bytes; tensors follow in their order. Errors: INVALID_ARGUMENT
// for a name that is there twice or is "__metadata__".
absl::StatusOr<std::string> EncodeSafetensors(const Safetensors& content);

// Takes memory for what the file has, and at most 80 bytes for each byte of its header. Errors:
// INVALID_ARGUMENT for a dtype that is not an StoredType, naming the tensor, and for a header of
// more than 32 MiB; DATA_LOSS for a file that is cut off, has holes or bytes too many, or whose
// header is not as above. With `unread` a tensor of another dtype is left out, and its error put
// there by the tensor's name.
absl::StatusOr<Safetensors> DecodeSafetensors(
    absl::string_view file, std::map<std::string, absl::Status>* unread = nullptr);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_SAFETENSORS_H_
