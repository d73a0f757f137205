#include "models/layers.h"

#include <cmath>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/ops/batch_norm.h"
#include "ATen/ops/conv2d.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"
#include "models/sync_norm.h"

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

void CheckValues(const at::Tensor& x) {
  TORCH_CHECK(x.numel() > x.size(1),
              "batch normalisation in training: expected more than 1 value per channel, found "
              "input of shape ",
              x.sizes(), "; use a larger batch or image");
}

}  // namespace

at::Generator MakeGenerator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

Conv2d::Conv2d(const ConvOptions& options, at::Generator& generator) : options_(options) {
  at::Tensor weight = at::empty({options.out, options.in, options.kernel, options.kernel});
  DrawDefaultWeight(weight, options.in * options.kernel * options.kernel, generator);
  weight_ = register_parameter("weight", std::move(weight));
}

void Conv2d::InitKaimingNormal(at::Generator& generator) {
  c10::NoGradGuard no_grad;
  const int64_t fan_out = options_.out * options_.kernel * options_.kernel;
  const double gain = std::sqrt(2.0);
  weight_.normal_(0, gain / std::sqrt(static_cast<double>(fan_out)), generator);
}

at::Tensor Conv2d::forward(const at::Tensor& x) const {
  return at::conv2d(x, weight_, /*bias=*/{}, options_.stride, options_.padding);
}

BatchNorm2d::BatchNorm2d(int64_t channels) {
  tensors_.weight = register_parameter("weight", at::ones({channels}));
  tensors_.bias = register_parameter("bias", at::zeros({channels}));
  tensors_.running_mean = register_buffer("running_mean", at::zeros({channels}));
  tensors_.running_var = register_buffer("running_var", at::ones({channels}));
  tensors_.num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor BatchNorm2d::Plain(const at::Tensor& x) {
  if (is_training() && exchange_ != nullptr) return SyncNorm(x, tensors_, *exchange_);
  if (is_training()) {
    CheckValues(x);
    tensors_.num_batches_tracked.add_(1);
  }
  return at::batch_norm(x, tensors_.weight, tensors_.bias, tensors_.running_mean,
                        tensors_.running_var, is_training(), /*momentum=*/0.1, /*eps=*/1e-5,
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor BatchNorm2d::Fused(const at::Tensor& x, const at::Tensor& residual, bool relu) {
  CheckValues(x);
  return fused_norm_.Forward(x, residual, relu, tensors_);
}

int SetMomentExchange(torch::nn::Module& model, MomentExchange* exchange) {
  int norms = 0;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto* norm = module->as<BatchNorm2d>();
    if (norm == nullptr) continue;
    norm->set_exchange(exchange);
    ++norms;
  }
  return norms;
}

Linear::Linear(int64_t in, int64_t out, at::Generator& generator) {
  at::Tensor weight = at::empty({out, in});
  DrawDefaultWeight(weight, in, generator);
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  at::Tensor bias = at::empty({out}).uniform_(-bound, bound, generator);
  weight_ = register_parameter("weight", std::move(weight));
  bias_ = register_parameter("bias", std::move(bias));
}

at::Tensor Linear::forward(const at::Tensor& x) const { return at::linear(x, weight_, bias_); }

}  // namespace gradsync
