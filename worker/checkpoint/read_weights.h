// Weights for a model from the files that people have: which of a file's dicts they are in, under
// which names, and what of the model they leave as it is.

#ifndef GRADSYNC_WORKER_CHECKPOINT_READ_WEIGHTS_H_
#define GRADSYNC_WORKER_CHECKPOINT_READ_WEIGHTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/host_tensor.h"

namespace gradsync {

struct WeightsWanted {
  std::vector<TensorShape> tensors;  // all of the model's
  // Which of the file's dicts has them, such as "model_ema". Empty: the one that has the most of
  // their names; of several, one under a customary key, such as "state_dict" or "model", rather than
  // an average of weights.
  std::string key;
  // A regular expression of RE2. The model's tensors whose names it matches somewhere are left as
  // they are, and the file's, by their names in the file or in the model, passed over. Empty: none.
  std::string skip;
};

struct WeightsFound {
  std::vector<HostTensor> tensors;  // by the model's names
  std::vector<std::string> left;    // the model's others, which `skip` matches
  std::string account;              // what was chosen and passed over, in a line; may be empty
};

// Empty, or what is wrong with a regular expression of RE2.
std::string ErrorInRegex(const std::string& regex);

// A prefix that the model's names share in the dict is taken off, whatever it is, such as "module."
// or "model."; and so are, within a name, the names of PyTorch's wrappers, such as _orig_mod. Entries
// without the prefix and values that are no tensors are passed over. A num_batches_tracked that is
// not there is 0, as for torch.load_state_dict(). Apart from that, names and sizes must be the
// model's, all of them.
// Errors: INVALID_ARGUMENT with what is missing, unexpected or of other sizes, the first few of each
// by name, and the flag that goes on without them; for two dicts or prefixes of which either could be
// meant; for a `key` or `skip` that matches nothing. Those of WeightEntry::read().
absl::StatusOr<WeightsFound> FitWeights(const std::vector<WeightDict>& dicts,
                                        const WeightsWanted& wanted);

// FitWeights() of a file of torch.save or of safetensors; which of them it is, its first bytes say.
// Errors: as FitWeights(), OpenTorchFile() and DecodeSafetensors(), and those of the file, such as
// NOT_FOUND. All begin with the flag, --init_from, --init_key or --init_skip, and the path.
absl::StatusOr<WeightsFound> ReadWeights(const std::string& path, const WeightsWanted& wanted);

// Whether `found` has the names and sizes of `wanted`, and no others. Errors: INVALID_ARGUMENT as
// those of FitWeights(), without a flag.
absl::Status CompareShapes(const std::vector<TensorShape>& wanted,
                           const std::map<std::string, std::vector<int64_t>>& found);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_READ_WEIGHTS_H_
