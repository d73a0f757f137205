// The formats of weight files: safetensors, and those of Python's torch.save.

#ifndef GRADSYNC_WORKER_CHECKPOINT_FILE_FORMATS_H_
#define GRADSYNC_WORKER_CHECKPOINT_FILE_FORMATS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/host_tensor.h"

namespace gradsync {

// The tensors of a weight file before they are read: by name, wherever in the file they are.
struct WeightEntry {
  absl::string_view name;  // of the file's bytes
  // False for numbers, strings, dicts and the like, which no weight can be. An object that only
  // Python could make a tensor of, such as a sparse one, is a weight that read() refuses by name.
  bool weight = true;
  bool numpy = false;  // an array of numpy, which is no weight
  // The tensor, contiguous, by that name. To be called once. Errors: INVALID_ARGUMENT for another
  // kind of tensor or value, naming it; DATA_LOSS for one that is damaged.
  std::function<absl::StatusOr<HostTensor>()> read;
};

// A dict of a file. Its bytes must outlive the dict.
struct WeightDict {
  std::string key;  // where it is: "model_ema", "state.model"; empty: it is the file
  std::vector<WeightEntry> entries;
};

// The safetensors format: 8 bytes with the header's length, little endian; the header, JSON with
// each tensor's dtype, shape and data_offsets; then the tensors' bytes, without holes.
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

// State dicts in the files of Python's torch.save and torch.load.

// A file that torch.load(..., weights_only=True) reads as a dict of tensors by name, in this order.
// Only what PyTorch 1.13 and 2.x both accept there is in it; beyond 4 GiB it is a zip64 archive.
absl::StatusOr<std::string> EncodeTorchFile(const std::vector<HostTensor>& tensors);

// The dict that torch.save, or LibTorch's torch::pickle_save, wrote, and the dicts that it has
// under strings, down to the fifth level. Other values beside weights, such as an optimizer's state
// or objects of any class, are passed over. What torch.load would read is read with the same
// values, whatever strides a tensor has and whichever storage it shares, or refused by name. Reads
// nothing outside `file` and runs nothing in it; the tensors that are read take at most four times
// its bytes and 16 MiB. Errors: INVALID_ARGUMENT for another format, naming it (the format before
// PyTorch 1.6, TorchScript, a compressed archive), and for a value that is no dict; DATA_LOSS for a
// file that is cut off or damaged.
absl::StatusOr<std::vector<WeightDict>> OpenTorchFile(absl::string_view file);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_FILE_FORMATS_H_
