// Models whose layers are cut into slices, each on a rank of its own.
//
// Source: Shoeybi et al.: "Megatron-LM: Training Multi-Billion Parameter Language Models Using
// Model Parallelism", 2019; sequences: Korthikanti et al.: "Reducing Activation Recomputation in
// Large Transformer Models", 2022.

#ifndef GRADSYNC_WORKER_MODELS_SLICES_H_
#define GRADSYNC_WORKER_MODELS_SLICES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"
#include "worker/models/model.h"

namespace gradsync {

// How the slices of one model meet in the midst of forward and
// backward. Models know nothing else of the other ranks. Not thread-safe.
//
// Every method is collective and blocks until all slices have come. All slices make the same calls
// in the same order with tensors of the same sizes and type, as those do that run parts of one
// model on the same batch. Nobody may write to the memory of a tensor that was passed. What is
// added up is added in the order of slices, so all get the same bits, in every run. Errors: the
// implementation's, after one of which every later call fails; INVALID_ARGUMENT for a tensor that
// differs from other slices'.
class SliceExchange {
 public:
  virtual ~SliceExchange() = default;

  virtual int slice() const = 0;   // this rank's, from 0
  virtual int slices() const = 0;  // how many there are

  // The sum of all slices' tensors, in memory of its own.
  virtual absl::StatusOr<at::Tensor> Sum(const at::Tensor& own) = 0;

  // `own` has a part for each slice along its first dimension. The sum of all slices' parts for
  // this one, without that dimension, in memory of its own.
  virtual absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own) = 0;

  // All slices' tensors, by slice.
  virtual absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own) = 0;
};

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
  // (worker/models/loss.h). `of.exchange` must outlive the use of the model.
  virtual void BecomeSlice(const SliceOf& of) = 0;
};

// Makes `model`, which is whole, on the CPU, and not bound to buckets yet, the slice `of`; its
// parameters keep their names. Errors: INVALID_ARGUMENT for a model of which there are no slices.
absl::Status SliceModel(Model& model, const SliceOf& of);

// The parameter of the whole model, by all slices' parts, with `groups` groups; flat.
at::Tensor JoinParts(const std::vector<at::Tensor>& parts, int64_t groups);

// Where the computation of all slices of a layer becomes that of each, and back. Of a whole layer
// these return their input.
//
// All throw c10::Error when an exchange fails.

// Into a layer whose outputs are cut ("f"): the same `x` for all slices, whose gradient is the sum
// of what slices say. `x` [B, T, width] of slices that have a part of the sequence is [B, T/n,
// width]: then the parts are gathered, and the gradient's sum is cut again.
at::Tensor EnterSlices(const at::Tensor& x, const SliceOf& of);

// Out of a layer whose inputs were cut ("g"): the sum of all slices' `x` [B, T, width], whose
// gradient is everybody's. Slices that have a part of the sequence get that part of the sum.
at::Tensor LeaveSlices(const at::Tensor& x, const SliceOf& of);

// A parameter that all slices have whole and each uses for its part of the sequence: its gradient
// is the sum of theirs. The parameter itself where slices have all of the sequence, and so the same
// gradient.
at::Tensor SharedBySlices(const at::Tensor& parameter, const SliceOf& of);

// at::linear(x, weight, bias) of a weight whose columns are cut, as the elements of `x` are. The
// bias, which all slices have, is added once, after the sum.
at::Tensor LinearOfSlices(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const SliceOf& of);

// at::embedding(weight, indices) [B, T, width] of a weight whose rows are cut: each slice looks up
// the indices [B, T] that it has.
at::Tensor EmbeddingOfSlices(const at::Tensor& weight, const at::Tensor& indices,
                             const SliceOf& of);

// `norm` of `x` [B, T, width], or of this slice's part of the sequence.
at::Tensor NormaliseSlice(const LayerNorm& norm, const at::Tensor& x, const SliceOf& of);

// `dropout` of `x` [B, T, width], or of this slice's part of the sequence, of which it drops what
// it would drop of the whole.
at::Tensor DropSlice(const Dropout& dropout, const at::Tensor& x, const SliceOf& of);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_SLICES_H_
