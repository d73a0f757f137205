// What the trainer needs of a model. Start at CreateModel (worker/models/create_model.h).
#ifndef GRADSYNC_WORKER_MODELS_MODEL_H_
#define GRADSYNC_WORKER_MODELS_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "worker/models/checkpoint.h"
#include "worker/models/dropout.h"

namespace gradsync {

// A piece of a model between two points at which a single tensor passes. Blocks one after another
// are the model, so it can be cut between any two of them.
struct ModelBlock {
  std::string name;  // "layer1.0"
  // Names of the modules and parameters that are this block's, relative to the model: a parameter
  // `p` is its if `p` is one of these or begins with one of these and a dot.
  std::vector<std::string> members;
  std::function<at::Tensor(const at::Tensor&)> forward;
  // Whether activation checkpointing recomputes it: worth it where a block makes many tensors of
  // about its input's size, which stems and classifiers do not.
  bool recompute = false;
};

// A torch module with one input and one output, so named_parameters(), named_buffers(), train() and
// eval() are torch's. It is a list of blocks.
//
// An image classifier takes float [B, C, H, W], normalised, and returns logits float [B, classes];
// a language model takes int64 [B, T] and returns [B, T, vocabulary].
//
// Not thread-safe: one step at a time.
class Model : public torch::nn::Module {
 public:
  // The logits of `input`, which is not modified. LibTorch throws c10::Error on a shape or type
  // that does not fit.
  at::Tensor forward(at::Tensor input);

  // The output of blocks [first, end) for `input`, which is the output of block first-1, or of the
  // model where that is 0. The first block may change it in place.
  at::Tensor ForwardBlocks(int first, int end, at::Tensor input);

  // To be called before the forward of every step and micro-batch, on the device on which the model
  // stays: what is random in it is a pure function of `seed` (StepSeed()), of a layer's place in
  // the model and of an element's place in a tensor. So nothing random is carried from one step to
  // the next, and a second forward with one seed is the same as the first.
  void BeginStep(uint64_t seed);

  // For threads that each compute some of the blocks, and not all of the same micro-batch: blocks
  // [begins[i], begins[i + 1]) have a seed of their own from now on, for BeginPart(i). `begins`
  // begins with 0 and ascends; the last part ends with the model. To be called once.
  void SeedPartsApart(const std::vector<int>& begins);

  // BeginStep() of one of these parts. May be called while other parts compute.
  void BeginPart(int part, uint64_t seed);

  // From the next forward on: in training, blocks with `recompute` keep their input alone, and
  // compute everything else again in backward (worker/models/checkpoint.h). The results have the
  // same bits.
  void set_activation_checkpointing(bool on);
  bool activation_checkpointing() const { return checkpointing_; }

  const std::vector<ModelBlock>& blocks() const { return blocks_; }

  // Names of the parameters that are the block's, in the model's order.
  std::vector<std::string> ParametersOf(const ModelBlock& block) const;

 protected:
  // For constructors, in the order in which data passes; `members` must be registered before.
  void AddBlock(ModelBlock block);

  // What the model's Dropout layers are made with.
  const std::shared_ptr<StepRandom>& random() const { return random_; }

 private:
  std::vector<ModelBlock> blocks_;
  std::vector<std::shared_ptr<const Recomputed>> recomputed_;  // by block; null: not recomputed
  bool checkpointing_ = false;
  std::shared_ptr<StepRandom> random_ = std::make_shared<StepRandom>();
  // By part, the first one's being random_; that alone where no parts were made.
  std::vector<std::shared_ptr<StepRandom>> parts_ = {random_};
};

// The seed of one forward: of the job's `seed`, and of who computes which part of which step.
uint64_t StepSeed(uint64_t seed, int rank, int64_t step, int64_t micro_batch);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MODEL_H_
