// Where the computation of all slices of a layer becomes that of each, and back. Of a whole layer
// these return their input.
//
// All throw c10::Error when an exchange fails.
#ifndef GRADSYNC_WORKER_MODELS_SLICE_FUNCTIONS_H_
#define GRADSYNC_WORKER_MODELS_SLICE_FUNCTIONS_H_

#include "ATen/core/Tensor.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"
#include "worker/models/sliceable_model.h"

namespace gradsync {

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

// `dropout` of `x` [B, T, width], or of this slice's part of the sequence, of which it drops what it
// would drop of the whole.
at::Tensor DropSlice(const Dropout& dropout, const at::Tensor& x, const SliceOf& of);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_SLICE_FUNCTIONS_H_
