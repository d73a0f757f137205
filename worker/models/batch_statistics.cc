#include "worker/models/batch_statistics.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/batch_norm_update_stats.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/native_batch_norm.h"
#include "ATen/ops/native_batch_norm_backward.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kMomentum = 0.1;

constexpr double kEps = 1e-5;

// What one rank has to say: of how many values per channel, and two numbers for each channel. On the
// wire a double, and then numbers of the type in which the layer computes.
struct ChannelFigures {
  double count = 0;
  std::vector<double> first;
  std::vector<double> second;
};

void AppendBytes(const at::Tensor& channels, std::string* bytes) {
  const at::Tensor host = channels.to(at::kCPU).contiguous();
  bytes->append(static_cast<const char*>(host.data_ptr()), host.nbytes());
}

std::vector<double> ReadChannels(const char* bytes, const at::Tensor& like) {
  at::Tensor channels = at::empty({like.numel()}, like.scalar_type());
  std::memcpy(channels.data_ptr(), bytes, channels.nbytes());
  channels = channels.to(at::kDouble);
  const double* values = channels.data_ptr<double>();
  return std::vector<double>(values, values + channels.numel());
}

// Everybody's figures, by rank. `first` and `second` are of one type and size, the same on all.
std::vector<ChannelFigures> Gather(double count, const at::Tensor& first, const at::Tensor& second,
                                   MomentExchange& exchange) {
  std::string own(sizeof(double), '\0');
  std::memcpy(own.data(), &count, sizeof(double));
  AppendBytes(first, &own);
  AppendBytes(second, &own);
  const auto all = exchange.AllGather(own);
  TORCH_CHECK(all.ok(), "synchronised normalisation: ", std::string(all.status().message()));
  std::vector<ChannelFigures> figures;
  for (const std::string& bytes : *all) {
    TORCH_CHECK(bytes.size() == own.size(), "synchronised normalisation: expected ", own.size(),
                " bytes for ", first.numel(), " channels from every rank, found ", bytes.size());
    ChannelFigures rank;
    std::memcpy(&rank.count, bytes.data(), sizeof(double));
    rank.first = ReadChannels(bytes.data() + sizeof(double), first);
    rank.second = ReadChannels(bytes.data() + sizeof(double) + first.nbytes(), second);
    figures.push_back(std::move(rank));
  }
  return figures;
}

// In the type and on the device of `x`.
at::Tensor OnDevice(const std::vector<double>& values, const at::Tensor& x) {
  const at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), host.data_ptr<double>());
  return host.to(x.device(), x.scalar_type());
}

// Of all ranks' values.
struct Moments {
  double count = 0;
  at::Tensor mean;
  at::Tensor variance;  // by count
};

// Means and variances are put together without a difference of large numbers: Chan, Golub, LeVeque,
// "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
Moments MomentsOfAll(const at::Tensor& x, MomentExchange& exchange) {
  const size_t channels = static_cast<size_t>(x.size(1));
  const double count = static_cast<double>(x.numel()) / static_cast<double>(channels);
  at::Tensor mean = at::zeros({x.size(1)}, x.options());
  at::Tensor variance = mean;
  if (count > 0) {
    std::tie(mean, variance) =
        at::batch_norm_update_stats(x, /*running_mean=*/{}, /*running_var=*/{}, kMomentum);
  }
  const std::vector<ChannelFigures> all = Gather(count, mean, variance, exchange);
  Moments moments;
  for (const ChannelFigures& rank : all) moments.count += rank.count;
  TORCH_CHECK(moments.count > 1,
              "batch normalisation in training: expected more than 1 value per channel in all "
              "ranks' batches, found input of shape ",
              x.sizes(), " here; use a larger batch or image");
  std::vector<double> means(channels), variances(channels);
  for (size_t c = 0; c < channels; ++c) {
    for (const ChannelFigures& rank : all) means[c] += rank.count / moments.count * rank.first[c];
    for (const ChannelFigures& rank : all) {
      const double off = rank.first[c] - means[c];
      variances[c] += rank.count / moments.count * (rank.second[c] + off * off);
    }
  }
  moments.mean = OnDevice(means, x);
  moments.variance = OnDevice(variances, x);
  return moments;
}

void UpdateBuffers(const Moments& moments, const NormTensors& tensors) {
  tensors.num_batches_tracked.add_(1);
  tensors.running_mean.mul_(1 - kMomentum).add_(moments.mean, kMomentum);
  const double unbiased = moments.count / (moments.count - 1);
  tensors.running_var.mul_(1 - kMomentum).add_(moments.variance, kMomentum * unbiased);
}

// [C] as what is added to, or multiplied with, something like `x`.
at::Tensor AlongChannels(const at::Tensor& channels, const at::Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = channels.numel();
  return channels.view(sizes);
}

struct SyncNormFunction : public torch::autograd::Function<SyncNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const Moments& moments,
                            MomentExchange* exchange) {
    context->save_for_backward({x, weight, moments.mean, moments.variance});
    context->saved_data["count"] = moments.count;
    context->saved_data["exchange"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(exchange));
    if (x.numel() == 0) return at::empty_like(x);
    // With moments that are given, as in an evaluation.
    return std::get<0>(at::native_batch_norm(x, weight, bias, moments.mean, moments.variance,
                                             /*training=*/false, kMomentum, kEps));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    auto* exchange = reinterpret_cast<MomentExchange*>(
        static_cast<intptr_t>(context->saved_data["exchange"].toInt()));
    const double count = context->saved_data["count"].toDouble();
    at::Tensor dx = at::empty_like(x);
    at::Tensor d_weight = at::zeros_like(weight);
    at::Tensor d_bias = at::zeros_like(weight);
    if (x.numel() > 0) {
      // dx as if the moments did not depend on x, and the sums of dy and of dy times what was
      // normalised.
      std::tie(dx, d_weight, d_bias) = at::native_batch_norm_backward(
          gradients[0], x, weight, mean, variance, /*save_mean=*/{}, /*save_invstd=*/{},
          /*train=*/false, kEps, {true, true, true});
    }
    const size_t channels = static_cast<size_t>(weight.numel());
    std::vector<double> sums(channels), products(channels);
    for (const ChannelFigures& rank : Gather(count, d_bias, d_weight, *exchange)) {
      for (size_t c = 0; c < sums.size(); ++c) {
        sums[c] += rank.first[c] / count;
        products[c] += rank.second[c] / count;
      }
    }
    if (x.numel() > 0) {
      const at::Tensor inv_std = (variance + kEps).rsqrt();
      const at::Tensor scale = weight * inv_std;
      const at::Tensor of_mean = scale * OnDevice(sums, x);
      const at::Tensor of_variance = scale * inv_std * OnDevice(products, x);
      dx.addcmul_(x - AlongChannels(mean, x), AlongChannels(of_variance, x), -1);
      dx.sub_(AlongChannels(of_mean, x));
    }
    return {dx, d_weight, d_bias, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void PooledMoments::Add(const at::Tensor& mean, const at::Tensor& variance, double count) {
  c10::NoGradGuard no_grad;
  const at::Tensor own = mean.to(at::kDouble);
  const at::Tensor squares = variance.to(at::kDouble) * (count - 1);
  if (count_ == 0) {
    mean_ = own;
    squares_ = squares;
    count_ = count;
    return;
  }
  const at::Tensor off = own - mean_;
  const double share = count / (count_ + count);
  squares_ = squares_ + squares + off * off * (count_ * share);
  mean_ = mean_ + off * share;
  count_ += count;
}

void PooledMoments::Update(const NormTensors& tensors) {
  if (count_ == 0) return;
  c10::NoGradGuard no_grad;
  tensors.num_batches_tracked.add_(1);
  const auto update = [](const at::Tensor& buffer, const at::Tensor& value) {
    buffer.mul_(1 - kMomentum).add_(value.to(buffer.scalar_type()), kMomentum);
  };
  update(tensors.running_mean, mean_);
  update(tensors.running_var, squares_ / (count_ - 1));
  count_ = 0;
}

void StatisticsTurns::Begin() {
  MutexLock lock(&mutex_);
  active_ = true;
  abandoned_ = false;
  std::fill(next_.begin(), next_.end(), 0);
}

void StatisticsTurns::End() {
  MutexLock lock(&mutex_);
  active_ = false;
}

void StatisticsTurns::Await(int layer, int replica) {
  MutexLock lock(&mutex_);
  if (!active_) return;
  if (layer >= static_cast<int>(next_.size())) next_.resize(layer + 1, 0);
  while (!abandoned_ && next_[layer] < replica) changed_.Wait(&mutex_);
  TORCH_CHECK(!abandoned_, "running statistics: another replica failed");
  TORCH_CHECK(next_[layer] == replica, "running statistics: expected replica ", next_[layer],
              " at layer ", layer, ", found ", replica, ", which has been there in this step");
}

void StatisticsTurns::Pass(int layer) {
  MutexLock lock(&mutex_);
  if (!active_) return;
  ++next_[layer];
  changed_.SignalAll();
}

void StatisticsTurns::Abandon() {
  MutexLock lock(&mutex_);
  abandoned_ = true;
  changed_.SignalAll();
}

at::Tensor SyncNorm(const at::Tensor& x, const NormTensors& tensors, MomentExchange& exchange) {
  const at::Tensor values = x.to(tensors.weight.scalar_type());
  Moments moments;
  {
    c10::NoGradGuard no_grad;
    moments = MomentsOfAll(values.detach(), exchange);
    UpdateBuffers(moments, tensors);
  }
  return SyncNormFunction::apply(values, tensors.weight, tensors.bias, moments, &exchange)
      .to(x.scalar_type());
}

}  // namespace gradsync
