#include "worker/models/layers.h"

#include <cmath>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/ops/batch_norm.h"
#include "ATen/ops/conv2d.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/layer_norm.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/GradMode.h"
#include "worker/models/batch_statistics.h"

namespace gradsync {
namespace {

// torch.nn.init.kaiming_uniform_(weight, a=sqrt(5)), in its order of operations.
void DrawDefaultWeight(at::Tensor& weight, int64_t fan_in, at::Generator& generator) {
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1 + slope * slope));
  const double deviation = gain / std::sqrt(static_cast<double>(fan_in));
  const double bound = std::sqrt(3.0) * deviation;
  weight.uniform_(-bound, bound, generator);
}

int64_t FanIn(const ConvOptions& options) {
  return options.in / options.groups * options.kernel * options.kernel;
}

void CheckValues(const at::Tensor& x) {
  TORCH_CHECK(x.numel() > x.size(1),
              "batch normalisation in training: expected more than 1 value per channel, found "
              "input of shape ",
              x.sizes(), "; use a larger batch or image");
}

// Per channel.
double ValuesOf(const at::Tensor& x) {
  return static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
}

constexpr double kMomentum = 0.1;

// By the moments of the batch in training, which become those of `mean` and `variance` by so much.
at::Tensor Normalised(const at::Tensor& x, const NormTensors& tensors, const at::Tensor& mean,
                      const at::Tensor& variance, bool training, double momentum) {
  return at::batch_norm(x, tensors.weight, tensors.bias, mean, variance, training, momentum,
                        /*eps=*/1e-5, at::globalContext().userEnabledCuDNN());
}

// For one batch alone, whose moments are what is in them afterwards, times momentum.
NormTensors WithZeroStatistics(NormTensors tensors) {
  tensors.running_mean = at::zeros_like(tensors.running_mean);
  tensors.running_var = at::zeros_like(tensors.running_var);
  tensors.num_batches_tracked = at::zeros_like(tensors.num_batches_tracked);
  return tensors;
}

// In the order of the model's layers.
std::vector<BatchNorm2d*> NormsOf(torch::nn::Module& model) {
  std::vector<BatchNorm2d*> norms;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* norm = module->as<BatchNorm2d>()) norms.push_back(norm);
  }
  return norms;
}

// For a recomputation: what updates the running statistics updates copies.
NormTensors WithOwnStatistics(NormTensors tensors) {
  tensors.running_mean = tensors.running_mean.clone();
  tensors.running_var = tensors.running_var.clone();
  tensors.num_batches_tracked = tensors.num_batches_tracked.clone();
  return tensors;
}

}  // namespace

at::Generator MakeGenerator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

Conv2d::Conv2d(const ConvOptions& options, at::Generator& generator) : options_(options) {
  const int64_t fan_in = FanIn(options);
  at::Tensor weight =
      at::empty({options.out, options.in / options.groups, options.kernel, options.kernel});
  DrawDefaultWeight(weight, fan_in, generator);
  weight_ = register_parameter("weight", std::move(weight));
  if (!options.bias) return;
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  bias_ = register_parameter("bias", at::empty({options.out}).uniform_(-bound, bound, generator));
}

void Conv2d::InitKaimingNormal(at::Generator& generator) {
  c10::NoGradGuard no_grad;
  const int64_t fan_out = options_.out * options_.kernel * options_.kernel;
  const double gain = std::sqrt(2.0);
  weight_.normal_(0, gain / std::sqrt(static_cast<double>(fan_out)), generator);
  if (bias_.defined()) bias_.zero_();
}

void Conv2d::InitTruncatedNormal(at::Generator& generator) {
  c10::NoGradGuard no_grad;
  const double deviation = std::sqrt(1.0 / static_cast<double>(FanIn(options_)));
  constexpr double kEdge = 2;
  const auto cumulative = [](double x) { return (1 + std::erf(x / std::sqrt(2.0))) / 2; };
  const double low = cumulative(-kEdge / deviation), high = cumulative(kEdge / deviation);
  weight_.uniform_(2 * low - 1, 2 * high - 1, generator);
  weight_.erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-kEdge, kEdge);
  if (bias_.defined()) bias_.zero_();
}

at::Tensor Conv2d::forward(const at::Tensor& x) const {
  return at::conv2d(x, weight(), bias_, options_.stride, options_.padding, /*dilation=*/1,
                    options_.groups);
}

BatchNorm2d::BatchNorm2d(int64_t channels) {
  tensors_.weight = register_parameter("weight", at::ones({channels}));
  tensors_.bias = register_parameter("bias", at::zeros({channels}));
  tensors_.running_mean = register_buffer("running_mean", at::zeros({channels}));
  tensors_.running_var = register_buffer("running_var", at::ones({channels}));
  tensors_.num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor BatchNorm2d::Plain(const at::Tensor& x) {
  if (is_training() && exchange_ != nullptr) {
    return SyncNorm(x, recomputing_ ? WithOwnStatistics(tensors_) : tensors_, *exchange_);
  }
  if (is_training()) CheckValues(x);
  if (is_training() && !recomputing_ && pooling_ && turn_.turns == nullptr) {
    return NormalisePooled(x);
  }
  if (!is_training() || recomputing_ || turn_.turns == nullptr) return Normalise(x);
  turn_.turns->Await(turn_.layer, turn_.replica);
  at::Tensor y = Normalise(x);
  turn_.turns->Pass(turn_.layer);
  return y;
}

at::Tensor BatchNorm2d::Normalise(const at::Tensor& x) {
  if (is_training() && !recomputing_) tensors_.num_batches_tracked.add_(1);
  const at::Tensor none;  // Statistics that are not there are not updated.
  const at::Tensor& mean = recomputing_ ? none : tensors_.running_mean;
  const at::Tensor& variance = recomputing_ ? none : tensors_.running_var;
  return Normalised(x, tensors_, mean, variance, is_training(), kMomentum);
}

at::Tensor BatchNorm2d::NormalisePooled(const at::Tensor& x) {
  const NormTensors own = WithZeroStatistics(tensors_);
  at::Tensor y = Normalised(x, own, own.running_mean, own.running_var, /*training=*/true,
                            /*momentum=*/1);
  pooled_.Add(own.running_mean, own.running_var, ValuesOf(x));
  return y;
}

void BatchNorm2d::set_pooling(bool pooling) {
  if (pooling_ && !pooling) pooled_.Update(tensors_);
  pooling_ = pooling;
}

at::Tensor BatchNorm2d::Fused(const at::Tensor& x, const at::Tensor& residual, bool relu) {
  CheckValues(x);
  if (pooling_ && !recomputing_) {
    const NormTensors own = WithZeroStatistics(tensors_);
    at::Tensor y = fused_norm_.Forward(x, residual, relu, own);
    pooled_.Add(own.running_mean / kMomentum, own.running_var / kMomentum, ValuesOf(x));
    return y;
  }
  return fused_norm_.Forward(x, residual, relu,
                             recomputing_ ? WithOwnStatistics(tensors_) : tensors_);
}

// Modules name their buffers in a table of their own, which keeps the tensors that it has.
void BatchNorm2d::ShareStatistics(const BatchNorm2d& first, const StatisticsTurn& turn) {
  turn_ = turn;
  if (&first == this) return;
  tensors_.running_mean = first.tensors_.running_mean;
  tensors_.running_var = first.tensors_.running_var;
  tensors_.num_batches_tracked = first.tensors_.num_batches_tracked;
}

void ShareStatistics(const std::vector<torch::nn::Module*>& replicas, StatisticsTurns* turns) {
  const std::vector<BatchNorm2d*> first = NormsOf(*replicas[0]);
  for (size_t r = 0; r < replicas.size(); ++r) {
    int layer = 0;
    for (BatchNorm2d* norm : NormsOf(*replicas[r])) {
      norm->ShareStatistics(*first[layer], {turns, layer, static_cast<int>(r)});
      ++layer;
    }
  }
}

void PoolStatistics(torch::nn::Module& model, bool pooling) {
  for (BatchNorm2d* norm : NormsOf(model)) norm->set_pooling(pooling);
  if (auto* norm = model.as<BatchNorm2d>()) norm->set_pooling(pooling);
}

int SetMomentExchange(torch::nn::Module& model, MomentExchange* exchange) {
  const std::vector<BatchNorm2d*> norms = NormsOf(model);
  for (BatchNorm2d* norm : norms) norm->set_exchange(exchange);
  return static_cast<int>(norms.size());
}

Linear::Linear(int64_t in, int64_t out, at::Generator& generator) {
  at::Tensor weight = at::empty({out, in});
  DrawDefaultWeight(weight, in, generator);
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  at::Tensor bias = at::empty({out}).uniform_(-bound, bound, generator);
  weight_ = register_parameter("weight", std::move(weight));
  bias_ = register_parameter("bias", std::move(bias));
}

void Linear::InitNormal(double deviation, at::Generator& generator) {
  c10::NoGradGuard no_grad;
  weight_.normal_(0, deviation, generator);
  bias_.zero_();
}

void Linear::InitXavier(double bias_deviation, at::Generator& generator) {
  c10::NoGradGuard no_grad;
  DrawXavier(weight_, generator);
  bias_.normal_(0, bias_deviation, generator);
}

void Linear::InitBiasZero() {
  c10::NoGradGuard no_grad;
  bias_.zero_();
}

void Linear::InitZero() {
  c10::NoGradGuard no_grad;
  weight_.zero_();
  bias_.zero_();
}

at::Tensor Linear::forward(const at::Tensor& x) const { return at::linear(x, weight(), bias_); }

namespace {

// With the name of its weight.
void ForProductLayers(
    const torch::nn::Module& model,
    const std::function<void(const std::string& name, ProductLayer& layer)>& visit) {
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (auto* layer = item.value()->as<ProductLayer>()) visit(item.key() + ".weight", *layer);
  }
}

}  // namespace

std::vector<std::string> WeightsOfProducts(const torch::nn::Module& model) {
  std::vector<std::string> names;
  ForProductLayers(model, [&](const std::string& name, ProductLayer&) { names.push_back(name); });
  return names;
}

void UseCopies(torch::nn::Module& model,
               const std::function<at::Tensor(const std::string& name)>& copy_of) {
  ForProductLayers(
      model, [&](const std::string& name, ProductLayer& layer) { layer.UseCopy(copy_of(name)); });
}

LayerNorm::LayerNorm(int64_t width, double eps) : eps_(eps) {
  weight_ = register_parameter("weight", at::ones({width}));
  bias_ = register_parameter("bias", at::zeros({width}));
}

at::Tensor LayerNorm::Normalise(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias) const {
  return at::layer_norm(x, weight.sizes(), weight, bias, eps_);
}

Embedding::Embedding(int64_t count, int64_t width, double deviation, at::Generator& generator) {
  weight_ =
      register_parameter("weight", at::empty({count, width}).normal_(0, deviation, generator));
}

at::Tensor Embedding::forward(const at::Tensor& indices) const {
  return at::embedding(weight_, indices);
}

void DrawXavier(at::Tensor& weight, at::Generator& generator) {
  c10::NoGradGuard no_grad;
  const double deviation = std::sqrt(2.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  const double bound = std::sqrt(3.0) * deviation;
  weight.uniform_(-bound, bound, generator);
}

}  // namespace gradsync
