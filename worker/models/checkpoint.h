// Activation checkpointing: a block keeps its input alone and computes the rest again in backward.
#ifndef GRADSYNC_WORKER_MODELS_CHECKPOINT_H_
#define GRADSYNC_WORKER_MODELS_CHECKPOINT_H_

#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/models/layers.h"

namespace gradsync {

// A part of a model with one input and one output. It must give the same bits when it is run twice
// in a step, and its output must not be a view of its input.
struct Recomputed {
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::vector<std::shared_ptr<BatchNorm2d>> norms;  // all that it has
};

// The output of `block` for `x`, computed without a graph. In backward the block is run again with
// one, under the same autocast as now and with its BatchNorms told that they recompute, and a
// backward through that graph, within the one that is under way, accumulates the gradients of the
// block's parameters as ever: hooks on them see each once, in the order in which they would have
// come. A graph of the results of backward (create_graph) there is not.
//
// The graph shares ownership of `block`; what its function captures must outlive the backward.
// Throws what the block throws, now or in backward.
at::Tensor RunRecomputed(std::shared_ptr<const Recomputed> block, const at::Tensor& x);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_CHECKPOINT_H_
