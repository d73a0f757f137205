#ifndef GRADSYNC_WORKER_MODELS_DROPOUT_H_
#define GRADSYNC_WORKER_MODELS_DROPOUT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "torch/nn/module.h"

namespace gradsync {

// What the random layers of one model share: the seed of the step under way, as a tensor on the
// model's device, so that a CUDA graph reads the new one at every replay. Not thread-safe.
class StepRandom {
 public:
  StepRandom();

  // Queues the new seed on the current stream. The tensor stays the same while the device does.
  void Begin(uint64_t seed, c10::Device device);

  // int64, a scalar. Zero on the CPU before the first Begin().
  const at::Tensor& seed() const { return seed_; }

  // Empty but for `any_random()`: for layers that have a number already.
  std::shared_ptr<StepRandom> Apart() const;

  // Numbers the layers, from 0, in the order in which they are made.
  int64_t AddLayer(bool random) {
    any_random_ = any_random_ || random;
    return layers_++;
  }

  // Whether any layer reads the seed.
  bool any_random() const { return any_random_; }

 private:
  at::Tensor seed_;
  int64_t layers_ = 0;
  bool any_random_ = false;
};

// Sets each element to zero with `probability`, in training, and divides the others by 1 -
// probability, as torch.nn.Dropout. In evaluation, and with probability 0, it does nothing.
//
// Which elements is a pure function of the step's seed, the layer's number and the element's index,
// computed by operations of LibTorch on integers: no generator, so no state that would have to be
// saved, restored for a recomputation, or shared by threads; and a GPU drops what a CPU drops. (The
// choice is not Python's.)
class Dropout : public torch::nn::Module {
 public:
  // `probability` in [0, 1).
  Dropout(double probability, std::shared_ptr<StepRandom> random);

  at::Tensor forward(const at::Tensor& x) const { return ForwardPart(x, 0, 0, 1); }

  // forward() of part number `part` of `parts` equal ones along `dimension`: drops there what
  // forward() would drop of the whole.
  at::Tensor ForwardPart(const at::Tensor& x, int64_t dimension, int64_t part, int64_t parts) const;

  double probability() const { return probability_; }

  // From now on the step's seed is `random`'s. The layer keeps its number.
  void set_random(std::shared_ptr<StepRandom> random) { random_ = std::move(random); }

 private:
  const double probability_;
  std::shared_ptr<StepRandom> random_;
  const int64_t layer_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_DROPOUT_H_
