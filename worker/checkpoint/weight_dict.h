// The tensors of a weight file before they are read: by name, wherever in the file they are.

#ifndef GRADSYNC_WORKER_CHECKPOINT_WEIGHT_DICT_H_
#define GRADSYNC_WORKER_CHECKPOINT_WEIGHT_DICT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/host_tensor.h"

namespace gradsync {

struct WeightEntry {
  absl::string_view name;  // of the file's bytes
  // False for numbers, strings, dicts and the like, which no weight can be. An object that only
  // Python could make a tensor of, such as a sparse one, is a weight that read() refuses by name.
  bool weight = true;
  // The tensor, contiguous, by that name. To be called once. Errors: INVALID_ARGUMENT for another
  // kind of tensor or value, naming it; DATA_LOSS for one that is damaged.
  std::function<absl::StatusOr<HostTensor>()> read;
};

// A dict of a file. Its bytes must outlive the dict.
struct WeightDict {
  std::string key;  // where it is: "model_ema", "state.model"; empty: it is the file
  std::vector<WeightEntry> entries;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_WEIGHT_DICT_H_
