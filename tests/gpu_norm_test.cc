// Fused normalisation (worker/models/image_kernels.h) on a real GPU: against LibTorch's own
// operations, in fp64 for its values and as a model has them for its speed.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/batch_norm.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/full.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/gpu/gpu_resources.h"
#include "gradsync/ddp/tensor_over.h"
#include "gtest/gtest.h"
#include "tests/real_gpu.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/models/create_model.h"
#include "worker/models/image_kernels.h"
#include "worker/models/loss.h"
#include "worker/train/compute_options.h"
#include "worker/train/forward.h"

#ifdef GRADSYNC_CUDA
#include "ATen/cuda/CUDAGraph.h"
#include "c10/cuda/CUDAFunctions.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#endif

namespace gradsync {
namespace {

constexpr auto kFormat = at::MemoryFormat::ChannelsLast;

// What follows normalisation.
enum class Then { kNothing, kRelu, kResidual, kResidualAndRelu };
constexpr Then kAll[] = {Then::kNothing, Then::kRelu, Then::kResidual, Then::kResidualAndRelu};

bool HasResidual(Then then) { return then == Then::kResidual || then == Then::kResidualAndRelu; }
bool HasRelu(Then then) { return then == Then::kRelu || then == Then::kResidualAndRelu; }

struct Shape {
  int64_t images, channels, height, width;

  std::string Name() const { return absl::StrCat(images, "x", channels, "x", height, "x", width); }
};

// The inputs of one layer, on `device`; x and what else has a gradient want one. The same numbers
// each time, unless the device is to make them, which is faster.
struct Inputs {
  Inputs(const Shape& s, at::ScalarType type, c10::Device device, bool made_there = false) {
    at::Generator generator = at::detail::createCPUGenerator(17);
    const std::vector<int64_t> sizes = {s.images, s.channels, s.height, s.width};
    const auto image = [&](double mean, double deviation) {
      const at::Tensor normal = made_there ? at::randn(sizes, at::TensorOptions(device))
                                           : at::randn(sizes, generator).to(device);
      return (normal * deviation + mean).to(type).contiguous(kFormat);
    };
    const auto vector = [&](double mean, double deviation) {
      return (at::randn({s.channels}, generator) * deviation + mean).to(device);
    };
    x = image(0.7, 1.5).requires_grad_();
    residual = image(0, 1).requires_grad_();
    dy = image(0.1, 1);
    tensors.weight = vector(1, 0.3).requires_grad_();
    tensors.bias = vector(0, 0.3).requires_grad_();
    tensors.running_mean = vector(0, 1);
    tensors.running_var = vector(2, 0.1).abs();
    tensors.num_batches_tracked = at::full({}, 4, at::kLong).to(device);
  }

  std::vector<at::Tensor> Wanted(Then then) const {
    std::vector<at::Tensor> wanted = {x, tensors.weight, tensors.bias};
    if (HasResidual(then)) wanted.push_back(residual);
    return wanted;
  }

  at::Tensor x, residual, dy;
  NormTensors tensors;
};

std::vector<at::Tensor> Gradients(const at::Tensor& y, const std::vector<at::Tensor>& of,
                                  const at::Tensor& dy) {
  return torch::autograd::grad({y}, of, {dy}, /*retain_graph=*/true);
}

at::Tensor InFp64(const at::Tensor& t) { return t.detach().to(at::kDouble); }

// |found - expected| at most `tolerance` times (1 + |expected|), everywhere.
void ExpectClose(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                 const std::string& what) {
  const at::Tensor error = (InFp64(found) - expected).abs() / (expected.abs() + 1);
  EXPECT_LE(error.max().item<double>(), tolerance) << what;
}

void ExpectCloseAsAWhole(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                         const std::string& what) {
  EXPECT_LE((InFp64(found) - expected).norm().item<double>(),
            tolerance * expected.norm().item<double>())
      << what;
}

class FusedNormOnGpuTest : public RealGpuTest {
 protected:
  void SetUp() override {
    RealGpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(ApplyMathFlags(/*allow_tf32=*/false, c10::DeviceType::CUDA), absl::OkStatus());
  }

  c10::Device device() const { return TensorDevice(gpu_.get()); }

  // Forward and backward against fp64 ones of the same inputs.
  void Compare(const Shape& shape, at::ScalarType type, Then then, double tolerance,
               double sums_tolerance) {
    const std::string name =
        absl::StrCat(shape.Name(), " ", c10::toString(type), " then ", static_cast<int>(then));
    SCOPED_TRACE(name);
    Inputs in(shape, type, device());
    at::Tensor x = InFp64(in.x).requires_grad_(), residual = InFp64(in.residual).requires_grad_();
    at::Tensor weight = InFp64(in.tensors.weight).requires_grad_();
    at::Tensor bias = InFp64(in.tensors.bias).requires_grad_();
    at::Tensor mean = InFp64(in.tensors.running_mean), var = InFp64(in.tensors.running_var);

    ASSERT_TRUE(FusedNorm::Takes(in.x, in.tensors));
    FusedNorm norm;
    const at::Tensor y = norm.Forward(in.x, HasResidual(then) ? in.residual : at::Tensor(),
                                      HasRelu(then), in.tensors);
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(y.is_contiguous(kFormat));

    at::Tensor z = at::batch_norm(x, weight, bias, mean, var, /*training=*/true, 0.1, 1e-5,
                                  /*cudnn_enabled=*/false);
    if (HasResidual(then)) z = z + residual;
    // The reference lets gradients through where ours does, so that a value next to 0, of which
    // rounding decides, is not counted as an error.
    const at::Tensor passes =
        HasRelu(then) ? y.detach().gt(0).to(at::kDouble) : at::ones_like(z.detach());
    ExpectClose(y, HasRelu(then) ? z.detach().relu() : z.detach(), tolerance, "y");
    ExpectClose(in.tensors.running_mean, mean, 1e-6, "running_mean");
    ExpectClose(in.tensors.running_var, var, 1e-6, "running_var");
    EXPECT_EQ(in.tensors.num_batches_tracked.item<int64_t>(), 5);

    const auto found = Gradients(y, in.Wanted(then), in.dy);
    std::vector<at::Tensor> wanted = {x, weight, bias};
    if (HasResidual(then)) wanted.push_back(residual);
    const auto expected = Gradients(z * passes, wanted, InFp64(in.dy));
    ExpectClose(found[0], expected[0], tolerance, "dx");
    EXPECT_TRUE(found[0].is_contiguous(kFormat));
    ExpectCloseAsAWhole(found[1], expected[1], sums_tolerance, "d_weight");
    ExpectCloseAsAWhole(found[2], expected[2], sums_tolerance, "d_bias");
    if (HasResidual(then)) ExpectClose(found[3], expected[3], 0, "d_residual");
  }

  // The time of `call` on the GPU, once warm. The GPU is kept busy until the host has queued all
  // calls, or small ones would take the time of queueing them.
  double Milliseconds(const std::function<void()>& call) {
    constexpr int kTimes = 20;
    const ScopedEvent begin = *ScopedEvent::Create(gpu_), end = *ScopedEvent::Create(gpu_);
    for (int i = 0; i < 3; ++i) call();
    if (!busy_.defined()) {
      busy_ = at::zeros({int64_t{1} << 28}, at::TensorOptions(device()).dtype(at::kFloat));
    }
    for (int i = 0; i < 24; ++i) busy_.zero_();  // 24 GiB, 8 ms
    EXPECT_TRUE(gpu_->Record(begin.get(), gpu_->ComputeStream()).ok());
    for (int i = 0; i < kTimes; ++i) call();
    EXPECT_TRUE(gpu_->Record(end.get(), gpu_->ComputeStream()).ok());
    EXPECT_TRUE(gpu_->Synchronize(end.get()).ok());
    return absl::ToDoubleMilliseconds(*gpu_->Elapsed(begin.get(), end.get())) / kTimes;
  }

 private:
  at::Tensor busy_;
};

TEST_F(FusedNormOnGpuTest, GivesWhatTheOperationsGiveInFp64) {
  const Shape shapes[] = {{3, 64, 17, 13}, {16, 64, 56, 56}, {2, 256, 7, 7},
                          {5, 256, 31, 3}, {5, 2048, 3, 3},  {1, 24, 5, 9},
                          {2, 8, 1, 1},    {7, 512, 14, 14}, {1, 8192, 2, 2}};
  for (const Shape& shape : shapes) {
    // Of two values per channel, rounding of one is no small part of their deviation.
    const double wide = shape.images * shape.height * shape.width < 8 ? 30 : 1;
    for (const Then then : kAll) {
      Compare(shape, at::kFloat, then, 2e-5 * wide, 1e-5 * wide);
      Compare(shape, at::kHalf, then, 1e-3 * wide, 1e-5 * wide);
      Compare(shape, at::kBFloat16, then, 8e-3 * wide, 1e-5 * wide);
    }
  }
}

TEST_F(FusedNormOnGpuTest, ALargeMeanCostsNoDigits) {
  Inputs in({16, 64, 14, 14}, at::kFloat, device());
  in.x = (in.x.detach() + 1000).requires_grad_();
  const at::Tensor y = FusedNorm().Forward(in.x, {}, false, in.tensors);
  const at::Tensor x = InFp64(in.x);
  const at::Tensor expected =
      at::batch_norm(x, InFp64(in.tensors.weight), InFp64(in.tensors.bias), {}, {},
                     /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
  ExpectClose(y, expected, 2e-3, "y");  // 1000 in fp32 is known to 3e-5, on both sides
}

TEST_F(FusedNormOnGpuTest, TheSameInputsGiveTheSameBits) {
  for (const Then then : kAll) {
    std::vector<at::Tensor> first;
    for (int run = 0; run < 3; ++run) {
      Inputs in({32, 256, 28, 28}, at::kBFloat16, device());
      FusedNorm norm;
      const at::Tensor y = norm.Forward(in.x, HasResidual(then) ? in.residual : at::Tensor(),
                                        HasRelu(then), in.tensors);
      std::vector<at::Tensor> results = Gradients(y, in.Wanted(then), in.dy);
      results.insert(results.end(), {y, in.tensors.running_mean, in.tensors.running_var});
      if (run == 0) first = results;
      for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].equal(first[i])) << i;
    }
  }
}

TEST_F(FusedNormOnGpuTest, NansAndInfinitiesAreNotHidden) {
  Inputs in({4, 64, 8, 8}, at::kFloat, device());
  in.x = in.x.detach().clone();
  in.x.select(1, 3).select(0, 1).select(0, 2).fill_(std::numeric_limits<float>::quiet_NaN());
  in.x.select(1, 5).select(0, 1).select(0, 2).fill_(std::numeric_limits<float>::infinity());
  const at::Tensor y = FusedNorm().Forward(in.x, {}, /*relu=*/true, in.tensors);
  EXPECT_TRUE(y.select(1, 3).isnan().all().item<bool>());
  EXPECT_TRUE(y.select(1, 5).isnan().all().item<bool>());
  EXPECT_FALSE(y.select(1, 4).isnan().any().item<bool>());
  EXPECT_TRUE(in.tensors.running_var.select(0, 3).isnan().item<bool>());
}

// In fp32 their sum has the same bits wherever it is formed.
TEST_F(FusedNormOnGpuTest, AForkedOutputHasTheGradientOfBothUses) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Inputs in({4, 64, 9, 7}, type, device());
    const std::vector<at::Tensor> wanted = in.Wanted(Then::kResidualAndRelu);
    const at::Tensor other_dy = in.residual.detach();
    FusedNorm norm;
    const at::Tensor y = norm.Forward(in.x, in.residual, /*relu=*/true, in.tensors);
    const auto expected = Gradients(y, wanted, in.dy + other_dy);
    const auto [first, second] = FusedNorm::Fork(y);
    EXPECT_EQ(first.data_ptr(), y.data_ptr());
    EXPECT_EQ(second.data_ptr(), y.data_ptr());
    EXPECT_FALSE(first.is_same(second));
    const auto both =
        torch::autograd::grad({first, second}, wanted, {in.dy, other_dy}, /*retain_graph=*/true);
    for (size_t i = 0; i < both.size(); ++i) {
      if (type == at::kFloat) {
        EXPECT_TRUE(both[i].equal(expected[i])) << i;
      } else {
        ExpectCloseAsAWhole(both[i], InFp64(expected[i]), 1e-2, "bf16");
      }
    }
    // And of one use alone, after that.
    const auto of_second = Gradients(second, wanted, in.dy);
    const auto of_one = Gradients(y, wanted, in.dy);
    for (size_t i = 0; i < of_one.size(); ++i) EXPECT_TRUE(of_second[i].equal(of_one[i])) << i;
  }
  // Anything else is used as it is.
  const at::Tensor x = at::ones({2, 8, 2, 2}, at::TensorOptions(device()));
  EXPECT_TRUE(FusedNorm::Fork(x).first.is_same(x));
}

TEST_F(FusedNormOnGpuTest, TheLargestOfWindowsIsTheOperations) {
  for (const Shape& s : {Shape{4, 64, 30, 22}, Shape{2, 8, 7, 5}, Shape{1, 16, 1, 1}}) {
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      SCOPED_TRACE(absl::StrCat(s.Name(), " ", c10::toString(type)));
      Inputs in(s, type, device());
      const at::Tensor x = in.x.detach().relu().requires_grad_();  // many are equal
      ASSERT_TRUE(TakesMaxPool(x));
      const at::Tensor y = MaxPool(x), expected = at::max_pool2d(x, 3, 2, 1);
      EXPECT_TRUE(y.equal(expected));
      EXPECT_TRUE(y.is_contiguous(kFormat));
      const at::Tensor dy = at::randn(y.sizes(), y.options()).contiguous(kFormat);
      const at::Tensor found = torch::autograd::grad({y}, {x}, {dy})[0];
      const at::Tensor wanted = torch::autograd::grad({expected}, {x}, {dy})[0];
      ExpectClose(found, InFp64(wanted), type == at::kFloat ? 1e-6 : 1e-2, "dx");
    }
  }
  EXPECT_FALSE(TakesMaxPool(at::ones({2, 12, 4, 4}, at::TensorOptions(device()))));
}

TEST_F(FusedNormOnGpuTest, GradientsThatAreNotLaidOutAsTheInputAreTaken) {
  Inputs in({4, 64, 6, 6}, at::kFloat, device());
  const at::Tensor y = FusedNorm().Forward(in.x, in.residual, /*relu=*/true, in.tensors);
  const auto expected = Gradients(y, in.Wanted(Then::kResidual), in.dy);
  const auto found = Gradients(y, in.Wanted(Then::kResidual), in.dy.contiguous());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  // As a mean over pixels has it: one value for all of them.
  const at::Tensor one = in.dy.select(3, 0).select(2, 0).unsqueeze(2).unsqueeze(3);
  const auto spread = Gradients(y, in.Wanted(Then::kResidual), one.expand({4, 64, 6, 6}));
  EXPECT_TRUE(spread[0].isfinite().all().item<bool>());
}

TEST_F(FusedNormOnGpuTest, TakesOnlyWhatItsKernelsCan) {
  const Inputs in({2, 64, 4, 4}, at::kFloat, device());
  EXPECT_TRUE(FusedNorm::Takes(in.x, in.tensors));
  EXPECT_FALSE(FusedNorm::Takes(in.x.contiguous(), in.tensors));
  EXPECT_FALSE(FusedNorm::Takes(in.x.to(at::kDouble), in.tensors));
  EXPECT_FALSE(FusedNorm::Takes(in.x.cpu(), in.tensors));
  EXPECT_FALSE(FusedNorm::Takes(in.x.narrow(1, 0, 32), in.tensors));
  const Inputs odd({2, 12, 4, 4}, at::kFloat, device());
  EXPECT_FALSE(FusedNorm::Takes(odd.x, odd.tensors));
}

// The logits, then all gradients as one vector.
std::vector<at::Tensor> Step(const ComputeOptions& options, const std::string& name,
                             c10::Device device, std::vector<at::Tensor>* buffers,
                             const std::string& stem = "cifar") {
  ModelOptions model_options;
  model_options.name = name;
  model_options.stem = stem;
  model_options.seed = 5;
  const std::shared_ptr<Model> model = CreateModel(model_options).value();
  SetMemoryFormat(options, *model);
  model->to(device);
  const int64_t pixels = stem == "cifar" ? 32 : 96;
  const at::Tensor images =
      at::rand({16, 3, pixels, pixels}, at::detail::createCPUGenerator(1)).to(device);
  const at::Tensor logits = Forward(options, *model, images);
  CrossEntropy(logits, (at::arange(16) % 10).to(device)).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : model->parameters()) gradients.push_back(p.grad().flatten());
  for (const at::Tensor& b : model->buffers()) buffers->push_back(b.to(at::kDouble).flatten());
  return {logits.detach(), at::cat(gradients)};
}

TEST_F(FusedNormOnGpuTest, AModelComputesTheSameWithinRounding) {
  for (const auto& [name, stem] :
       {std::make_pair("resnet18", "cifar"), std::make_pair("resnet18", "imagenet"),
        std::make_pair("resnet50", "imagenet")}) {
    ComputeOptions options;
    options.channels_last = true;
    std::vector<at::Tensor> with, without;
    const auto found = Step(options, name, device(), &with, stem);
    options.fused_norm = false;
    const auto expected = Step(options, name, device(), &without, stem);
    EXPECT_FALSE(found[0].equal(expected[0])) << name << ": was it used at all?";
    const std::string what = absl::StrCat(name, " ", stem);
    const double deep = what == "resnet50 imagenet" ? 10 : 1;  // rounding adds up layer by layer
    ExpectCloseAsAWhole(found[0], InFp64(expected[0]), 1e-3 * deep, what + " logits");
    ExpectCloseAsAWhole(found[1], InFp64(expected[1]), 1e-2 * deep, what + " gradients");
    ExpectCloseAsAWhole(at::cat(with), at::cat(without), 1e-4 * deep, what + " statistics");
  }
}

TEST_F(FusedNormOnGpuTest, AModelInBf16HasAGradientThatPointsTheSameWay) {
  ComputeOptions options;
  options.channels_last = true;
  options.fused_norm = false;
  std::vector<at::Tensor> ignored;
  const at::Tensor expected = Step(options, "resnet18", device(), &ignored)[1];
  options.precision = Precision::kBf16;
  const auto cosine = [&](bool fused) {
    options.fused_norm = fused;
    const at::Tensor found = Step(options, "resnet18", device(), &ignored)[1];
    return (found.dot(expected) / found.norm() / expected.norm()).item<float>();
  };
  const float theirs = cosine(false), ours = cosine(true);
  std::printf("cosine of a gradient in bf16 with that in fp32: %.4f fused, %.4f not\n", ours,
              theirs);
  EXPECT_GT(ours, std::min(theirs - 0.02f, 0.97f));
}

#ifdef GRADSYNC_CUDA

TEST_F(FusedNormOnGpuTest, AGraphReplaysForwardAndBackward) {
  Inputs in({8, 256, 14, 14}, at::kBFloat16, device());
  FusedNorm norm;
  at::Tensor y;
  std::vector<at::Tensor> gradients;
  const auto step = [&] {
    y = norm.Forward(in.x, in.residual, /*relu=*/true, in.tensors);
    gradients = Gradients(y, in.Wanted(Then::kResidualAndRelu), in.dy);
  };
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  c10::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(stream);
  step();
  stream.synchronize();
  const at::Tensor expected_y = y.clone();
  const std::vector<at::Tensor> expected = {gradients[0].clone(), gradients[1].clone(),
                                            gradients[2].clone(), gradients[3].clone()};
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step();
  graph.capture_end();
  EXPECT_EQ(in.tensors.num_batches_tracked.item<int64_t>(), 5);
  for (int replay = 1; replay <= 3; ++replay) {
    y.detach().zero_();
    for (const at::Tensor& gradient : gradients) gradient.zero_();
    graph.replay();
    stream.synchronize();
    EXPECT_EQ(in.tensors.num_batches_tracked.item<int64_t>(), 5 + replay);
    EXPECT_TRUE(y.equal(expected_y));
    for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(gradients[i].equal(expected[i]));
  }
}

#endif  // GRADSYNC_CUDA

// Not a test: what the first run on a GPU wants to know. Bytes are those of worker/models/norm_kernels.h
// for ours, and for LibTorch's operations those of a kernel each: norm 3 and 5, ReLU 2 and 3,
// addition 3 and 0 times the tensor.
struct Layer {
  int64_t pixels, channels;
  Then then;
  int count;  // in a ResNet-50
};

struct Passes {
  double forward, backward;
};

Passes Ours(Then then) {
  if (then == Then::kResidualAndRelu) return {4 + 1.0 / 16, 6 + 1.0 / 16};
  return {3, 5};
}

Passes Theirs(Then then) {
  if (then == Then::kResidualAndRelu) return {8, 8};
  if (then == Then::kRelu) return {5, 8};
  return {3, 5};
}

TEST_F(FusedNormOnGpuTest, SpeedOfResNet50sLayersAtBatch128) {
  constexpr int64_t kImages = 128;
  const Layer layers[] = {{112, 64, Then::kRelu, 1},
                          {56, 64, Then::kRelu, 6},
                          {56, 256, Then::kResidualAndRelu, 3},
                          {56, 256, Then::kNothing, 1},
                          {56, 128, Then::kRelu, 1},
                          {28, 128, Then::kRelu, 7},
                          {28, 512, Then::kResidualAndRelu, 4},
                          {28, 512, Then::kNothing, 1},
                          {28, 256, Then::kRelu, 1},
                          {14, 256, Then::kRelu, 11},
                          {14, 1024, Then::kResidualAndRelu, 6},
                          {14, 1024, Then::kNothing, 1},
                          {14, 512, Then::kRelu, 1},
                          {7, 512, Then::kRelu, 5},
                          {7, 2048, Then::kResidualAndRelu, 3},
                          {7, 2048, Then::kNothing, 1}};
  std::printf("bf16, channels-last, batch %lld, %s; ms (TB/s)\n", static_cast<long long>(kImages),
              gpu_->name().c_str());
  std::printf("%-22s %-13s %5s | %15s %15s | %15s %15s\n", "layer", "then", "count", "forward",
              "LibTorch's", "backward", "LibTorch's");
  double sums[4] = {};
  for (const Layer& layer : layers) {
    const Shape shape = {kImages, layer.channels, layer.pixels, layer.pixels};
    Inputs in(shape, at::kBFloat16, device(), /*made_there=*/true);
    const at::Tensor residual = HasResidual(layer.then) ? in.residual : at::Tensor();
    FusedNorm norm;
    const auto fused = [&] {
      return norm.Forward(in.x, residual, HasRelu(layer.then), in.tensors);
    };
    const auto plain = [&] {
      at::Tensor y = at::batch_norm(
          in.x, in.tensors.weight, in.tensors.bias, in.tensors.running_mean, in.tensors.running_var,
          /*training=*/true, 0.1, 1e-5, at::globalContext().userEnabledCuDNN());
      if (residual.defined()) y.add_(residual);
      return HasRelu(layer.then) ? y.relu_() : y;
    };
    const auto wanted = in.Wanted(layer.then);
    const at::Tensor our_y = fused(), their_y = plain();
    const double times[4] = {Milliseconds([&] { fused(); }), Milliseconds([&] { plain(); }),
                             Milliseconds([&] { Gradients(our_y, wanted, in.dy); }),
                             Milliseconds([&] { Gradients(their_y, wanted, in.dy); })};
    const Passes ours = Ours(layer.then), theirs = Theirs(layer.then);
    const double passes[4] = {ours.forward, theirs.forward, ours.backward, theirs.backward};
    std::printf("%-22s %-13s %5d |", shape.Name().c_str(),
                layer.then == Then::kNothing ? "-"
                : layer.then == Then::kRelu  ? "relu"
                                             : "residual+relu",
                layer.count);
    for (int i = 0; i < 4; ++i) {
      const double bytes = passes[i] * 2 * static_cast<double>(in.x.numel());
      std::printf(" %7.3f (%5.2f)%s", times[i], bytes / times[i] * 1e-9, i == 1 ? " |" : "");
      sums[i] += layer.count * times[i];
    }
    std::printf("\n");
  }
  std::printf("%-22s %-13s %5d | %7.3f %15.3f         | %7.3f %15.3f\n", "all of a step", "", 53,
              sums[0], sums[1], sums[2], sums[3]);
  std::printf("saved: %.2f ms of a step\n", sums[1] + sums[3] - sums[0] - sums[2]);
}

}  // namespace
}  // namespace gradsync
