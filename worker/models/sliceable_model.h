// A model whose layers can be cut into slices, each on a rank of its own.
//
// Source: Shoeybi et al.: "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
// Parallelism", 2019; sequences: Korthikanti et al.: "Reducing Activation Recomputation in Large
// Transformer Models", 2022.
#ifndef GRADSYNC_WORKER_MODELS_SLICEABLE_MODEL_H_
#define GRADSYNC_WORKER_MODELS_SLICEABLE_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "worker/models/model.h"
#include "worker/models/slice_exchange.h"

namespace gradsync {

// Which slice of a model a layer computes, and with whom.
struct SliceOf {
  SliceExchange* exchange = nullptr;  // null: the layer is whole
  // What passes between layers is cut along the sequence, and normalised and dropped by slices;
  // else all slices have all of it.
  bool splits_sequence = false;

  bool whole() const { return exchange == nullptr; }
  bool has_part_of_sequence() const { return !whole() && splits_sequence; }
};

class SliceableModel {
 public:
  virtual ~SliceableModel() = default;

  // The parameters of which each slice has an equal part, by name, with their number of groups: the
  // elements, in row-major order, are so many groups of equal size, and slice s of n has the n-th
  // part number s of each group. So rows of a matrix are cut by 1 group, columns by as many groups
  // as there are rows. All other parameters every slice has whole.
  virtual std::map<std::string, int64_t> SlicedParameters() const = 0;

  // From here on the model computes slice `of`, its sliced parameters being that slice's part
  // already. Its output are then the slice's part of the logits, along their last dimension
  // (worker/models/sliced_loss.h). `of.exchange` must outlive the use of the model.
  virtual void BecomeSlice(const SliceOf& of) = 0;
};

// Makes `model`, which is whole, on the CPU, and not bound to buckets yet, the slice `of`; its
// parameters keep their names. Errors: INVALID_ARGUMENT for a model of which there are no slices.
absl::Status SliceModel(Model& model, const SliceOf& of);

// The parameter of the whole model, by all slices' parts, with `groups` groups; flat.
at::Tensor JoinParts(const std::vector<at::Tensor>& parts, int64_t groups);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_SLICEABLE_MODEL_H_
