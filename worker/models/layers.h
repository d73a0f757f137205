// The layers that our models are made of: torch.nn's Conv2d, BatchNorm2d, Linear, LayerNorm and
// Embedding, with the same parameter names, the same arithmetic and the same initial values.
//
// Why not torch::nn's own: those draw their initial values from the process-wide generator, so two
// ranks built by threads of one process would disturb each other, and a seed would be a global.
// Here the generator is an argument. Each layer draws exactly what its Python counterpart draws, in
// the same order, so a generator seeded with s gives the weights that Python has after
// torch.manual_seed(s). (Compiling a file against them also takes 6.3 s instead of 7.5 s.)
#ifndef GRADSYNC_WORKER_MODELS_LAYERS_H_
#define GRADSYNC_WORKER_MODELS_LAYERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"
#include "c10/core/GradMode.h"
#include "torch/nn/module.h"
#include "worker/models/batch_statistics.h"
#include "worker/models/image_kernels.h"
#include "worker/models/moment_exchange.h"

namespace gradsync {

// A generator of its own for one model. CPU.
at::Generator MakeGenerator(uint64_t seed);

// A layer that multiplies by a `weight`.
class ProductLayer : public torch::nn::Module {
 public:
  // From here on computes with `copy` in the weight's place, where autograd records what it does:
  // the weight in another type, as which autocast would take it.
  void UseCopy(at::Tensor copy) { weight_copy_ = std::move(copy); }

  // What is computed with now.
  const at::Tensor& weight() const {
    return weight_copy_.defined() && c10::GradMode::is_enabled() ? weight_copy_ : weight_;
  }

 protected:
  at::Tensor weight_;  // the parameter

 private:
  at::Tensor weight_copy_;
};

struct ConvOptions {
  int64_t in = 0;
  int64_t out = 0;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t groups = 1;  // Divides `in` and `out`.
  bool bias = false;
};

// `weight` [out, in / groups, kernel, kernel] and, if wanted, `bias` [out].
class Conv2d : public ProductLayer {
 public:
  // torch.nn.Conv2d's default: uniform in +-1/sqrt(fan_in).
  Conv2d(const ConvOptions& options, at::Generator& generator);

  // torch.nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu"), and bias 0.
  void InitKaimingNormal(at::Generator& generator);

  // torch.nn.init.trunc_normal_(weight, std=1/sqrt(fan_in)), and bias 0.
  void InitTruncatedNormal(at::Generator& generator);

  at::Tensor forward(const at::Tensor& x) const;

 private:
  const ConvOptions options_;
  at::Tensor bias_;
};

// `weight` 1, `bias` 0, buffers `running_mean`, `running_var`, `num_batches_tracked`; momentum 0.1,
// eps 1e-5. In training it normalises by the batch's moments and updates the buffers.
class BatchNorm2d : public torch::nn::Module {
 public:
  explicit BatchNorm2d(int64_t channels);

  // Throws c10::Error in training if a channel has only one value (batch 1 of 1x1 images), whose
  // variance does not exist.
  at::Tensor forward(const at::Tensor& x) { return Fuses(x) ? Fused(x, {}, false) : Plain(x); }

  // While set, forward() computes in training what it computed before for the same input, and leaves
  // the running statistics and the count of batches alone: that batch is in them already
  // (worker/models/checkpoint.h).
  void set_recomputing(bool recomputing) { recomputing_ = recomputing; }

  // Whether to use FusedNorm (worker/models/image_kernels.h) where it takes the input. At first not.
  void set_fused(bool fused) { fused_ = fused; }

  // Whose batches' moments to normalise by in training: those of all who meet in `exchange`
  // (worker/models/batch_statistics.h), which must outlive the use of this layer; null, as at first: this
  // one's.
  void set_exchange(MomentExchange* exchange) { exchange_ = exchange; }

  // From here on the buffers are those of `first`, the same layer of another replica of the model,
  // or of itself; and in training, without an exchange, they are updated when `turn` says so.
  void ShareStatistics(const BatchNorm2d& first, const StatisticsTurn& turn);

  // While set, forward() in training notes the moments of its batches and leaves the buffers alone;
  // when it is no longer, they are updated once, as by one batch of all
  // (worker/models/batch_statistics.h). Not with an exchange or turns, which update them with each
  // batch all the same.
  void set_pooling(bool pooling);

  // Whether a layer may be computed in another way than LibTorch's operations have it, for input
  // like `x`: fused, in training, on a GPU, in channels-last format.
  bool MayFuse(const at::Tensor& x) const {
    return fused_ && is_training() && x.is_cuda() &&
           x.is_contiguous(at::MemoryFormat::ChannelsLast);
  }

  // Whether Fused() may be called with `x`: in training, on a GPU, in channels-last format.
  bool Fuses(const at::Tensor& x) const {
    return MayFuse(x) && exchange_ == nullptr && turn_.turns == nullptr &&
           FusedNorm::Takes(x, tensors_);
  }

  // forward(), plus `residual` if that is defined, and then ReLU if `relu`. Throws as forward().
  at::Tensor Fused(const at::Tensor& x, const at::Tensor& residual, bool relu);

 private:
  at::Tensor Plain(const at::Tensor& x);
  at::Tensor Normalise(const at::Tensor& x);
  at::Tensor NormalisePooled(const at::Tensor& x);

  bool fused_ = false;
  bool pooling_ = false;
  PooledMoments pooled_;
  MomentExchange* exchange_ = nullptr;
  StatisticsTurn turn_;
  bool recomputing_ = false;
  NormTensors tensors_;
  FusedNorm fused_norm_;
};

// Sets the exchange of all BatchNorm2d in `model`; returns how many there are.
int SetMomentExchange(torch::nn::Module& model, MomentExchange* exchange);

// Of all BatchNorm2d in `model`, or of itself, set_pooling().
void PoolStatistics(torch::nn::Module& model, bool pooling);

// Lets `replicas` of one model, of which all but the first may have lost their running statistics
// afterwards, share those of the first, in turns. They must be alike. `turns` must outlive their
// use.
void ShareStatistics(const std::vector<torch::nn::Module*>& replicas, StatisticsTurns* turns);

// `weight` [out, in] and `bias` [out], uniform in +-1/sqrt(in).
class Linear : public ProductLayer {
 public:
  Linear(int64_t in, int64_t out, at::Generator& generator);

  // torch.nn.init.normal_(weight, 0, deviation), and bias 0.
  void InitNormal(double deviation, at::Generator& generator);

  // torch.nn.init.xavier_uniform_(weight), then torch.nn.init.normal_(bias, 0, bias_deviation).
  void InitXavier(double bias_deviation, at::Generator& generator);

  void InitBiasZero();
  void InitZero();

  at::Tensor forward(const at::Tensor& x) const;

  const at::Tensor& bias() const { return bias_; }

 private:
  at::Tensor bias_;
};

// The names of the weights of all ProductLayers in `model`.
std::vector<std::string> WeightsOfProducts(const torch::nn::Module& model);

// Lets all of them UseCopy(copy_of(name)).
void UseCopies(torch::nn::Module& model,
               const std::function<at::Tensor(const std::string& name)>& copy_of);

// `weight` [width] 1 and `bias` [width] 0; over the last dimension.
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t width, double eps);

  at::Tensor forward(const at::Tensor& x) const { return Normalise(x, weight_, bias_); }

  // forward() with these in the place of the weight and the bias.
  at::Tensor Normalise(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }

 private:
  const double eps_;
  at::Tensor weight_, bias_;
};

// `weight` [count, width], normal with the given deviation.
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t count, int64_t width, double deviation, at::Generator& generator);

  // `indices` int64 of any shape, in [0, count); the result has one dimension more.
  at::Tensor forward(const at::Tensor& indices) const;

  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};

// torch.nn.init.xavier_uniform_() of a weight [out, in], in place.
void DrawXavier(at::Tensor& weight, at::Generator& generator);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_LAYERS_H_
