#include "worker/train/forward.h"

#include <memory>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/randn.h"
#include "core/base/cpu_for_test.h"
#include "core/plan/plan.h"
#include "core/sync/buckets.h"
#include "gradsync/ddp/flat_parameters.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"
#include "worker/models/loss.h"

namespace gradsync {
namespace {

constexpr c10::DeviceType kCpu = c10::DeviceType::CPU;

TEST(AutocastTest, ProductsAreComputedInBf16WhileItLives) {
  const at::Tensor x = at::randn({4, 8});
  const at::Tensor w = at::randn({3, 8});
  {
    const Autocast autocast(Precision::kBf16, kCpu);
    EXPECT_EQ(at::linear(x, w).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::linear(x, w).scalar_type(), at::kFloat);
}

TEST(AutocastTest, Fp32LeavesEverythingAsItIs) {
  const at::Tensor x = at::randn({4, 8});
  const Autocast none(Precision::kFp32, kCpu);
  EXPECT_EQ(at::linear(x, x).scalar_type(), at::kFloat);
  const Autocast outer(Precision::kBf16, kCpu);
  { const Autocast inner(Precision::kBf16, kCpu); }
  EXPECT_EQ(at::linear(x, x).scalar_type(), at::kBFloat16);
}

TEST(AutocastTest, AParameterThatChangedIsCastAgainUnderTheNextGuard) {
  const at::Tensor x = at::randn({4, 8});
  const at::Tensor w = at::randn({3, 8}).set_requires_grad(true);
  const auto product = [&] {
    const Autocast autocast(Precision::kBf16, kCpu);
    return at::linear(x, w).detach().to(at::kFloat);
  };
  const at::Tensor before = product();
  w.detach().mul_(2);
  EXPECT_TRUE(product().equal(before.mul(2)));
}

TEST(AutocastTest, GradientsOfParametersAreFp32) {
  const at::Tensor w = at::randn({3, 8}).set_requires_grad(true);
  at::Tensor y;
  {
    const Autocast autocast(Precision::kBf16, kCpu);
    y = at::linear(at::randn({4, 8}), w);
  }
  y.to(at::kFloat).sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

std::shared_ptr<Model> NewModel(const std::string& name) {
  ModelOptions options;
  options.name = name;
  options.stem = "cifar";
  options.seed = 5;
  return CreateModel(options).value();
}

ComputeOptions ChannelsLast() {
  ComputeOptions options;
  options.channels_last = true;
  return options;
}

ComputeOptions Bf16() {
  ComputeOptions options;
  options.precision = Precision::kBf16;
  return options;
}

at::Tensor Images() { return at::rand({4, 3, 16, 16}, at::detail::createCPUGenerator(1)); }

// The logits, then the gradients by parameter, as fp32 in row-major order.
std::vector<at::Tensor> Step(const ComputeOptions& options, const std::string& name) {
  const std::shared_ptr<Model> model = NewModel(name);
  SetMemoryFormat(options, *model);
  const at::Tensor images =
      name == "mlp" ? at::rand({4, 3, 32, 32}, at::detail::createCPUGenerator(1)) : Images();
  const at::Tensor logits = Forward(options, *model, images);
  CrossEntropy(logits, at::arange(4)).backward();
  std::vector<at::Tensor> results = {logits.detach()};
  for (const at::Tensor& p : model->parameters()) results.push_back(p.grad().contiguous());
  return results;
}

// Relative to the norm of what is expected.
void ExpectNear(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kFloat) << i;
    const double difference = (found[i] - expected[i]).norm().item<float>();
    EXPECT_LE(difference, tolerance * expected[i].norm().item<float>()) << "result " << i;
  }
}

TEST(ForwardTest, ChannelsLastComputesTheSameWithinRounding) {
  ExpectNear(Step(ChannelsLast(), "resnet18"), Step({}, "resnet18"), 1e-3);
  ExpectNear(Step(ChannelsLast(), "mlp"), Step({}, "mlp"), 1e-6);
}

// Published hashes of jobs on CPUs rest on it.
TEST(ForwardTest, FusedNormalisationChangesNotABitOnACpu) {
  ComputeOptions plain = ChannelsLast();
  plain.fused_norm = false;
  const auto with = Step(ChannelsLast(), "resnet18"), without = Step(plain, "resnet18");
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(with[i].equal(without[i])) << i;
}

TEST(ForwardTest, Bf16ComputesTheSameWithinItsPrecision) {
  ExpectNear(Step(Bf16(), "mlp"), Step({}, "mlp"), 0.02);
  const auto bf16 = Step(Bf16(), "resnet18");
  ExpectNear({bf16[0]}, {Step({}, "resnet18")[0]}, !HasAvx512() ? 0.2 : 0.1);
  for (const at::Tensor& t : bf16) EXPECT_EQ(t.scalar_type(), at::kFloat);
}

TEST(ForwardTest, Bf16IsAnotherComputationThanFp32) {
  EXPECT_FALSE(Step(Bf16(), "mlp")[0].equal(Step({}, "mlp")[0]));
  EXPECT_FALSE(Step(Bf16(), "resnet18")[0].equal(Step({}, "resnet18")[0]));
}

// Rounding adds up layer by layer. In Python, PyTorch on its own has 0.94 here with AVX-512.
TEST(ForwardTest, TheGradientInBf16PointsTheSameWay) {
  const auto gradient = [](const ComputeOptions& options) {
    std::vector<at::Tensor> flat = Step(options, "resnet18");
    flat.erase(flat.begin());
    for (at::Tensor& t : flat) t = t.flatten();
    const at::Tensor all = at::cat(flat);
    return all.div(all.norm());
  };
  const at::Tensor expected = gradient({});
  ComputeOptions options = Bf16();
  const double least = !HasAvx512() ? 0.6 : 0.9;
  EXPECT_GT(gradient(options).dot(expected).item<float>(), least);
  options.channels_last = true;
  EXPECT_GT(gradient(options).dot(expected).item<float>(), least);
}

TEST(ForwardTest, ParametersStayFp32UnderBf16) {
  const std::shared_ptr<Model> model = NewModel("resnet18");
  SetMemoryFormat(Bf16(), *model);
  Forward(Bf16(), *model, Images());
  for (const at::Tensor& p : model->parameters()) EXPECT_EQ(p.scalar_type(), at::kFloat);
}

// What the buckets hold must be what convolutions want, or each would copy its weights.
TEST(ForwardTest, BucketsKeepChannelsLast) {
  const std::shared_ptr<Model> model = NewModel("resnet18");
  SetMemoryFormat(ChannelsLast(), *model);
  std::vector<int> all;
  const auto specs = TensorSpecsOf(*model).value();
  for (size_t i = 0; i < specs.size(); ++i) all.push_back(static_cast<int>(i));
  const Plan plan =
      Plan::FromBuckets(specs, {all}, {OptimizerKind::kSgd, {{}}}, 1, /*chunk_bytes=*/0).value();
  const auto buckets = *AllocateBuckets(plan);
  const auto flat = FlatParameters::Bind(*model, plan, buckets).value();
  int convolutions = 0;
  for (const FlatParameter& p : flat.parameters()) {
    if (p.parameter.dim() != 4) continue;
    ++convolutions;
    EXPECT_TRUE(p.parameter.is_contiguous(at::MemoryFormat::ChannelsLast)) << p.name;
    EXPECT_TRUE(p.grad.is_contiguous(at::MemoryFormat::ChannelsLast)) << p.name;
  }
  EXPECT_EQ(convolutions, 20);
  CrossEntropy(Forward(ChannelsLast(), *model, Images()), at::arange(4)).backward();
  EXPECT_TRUE(flat.CheckViews().ok());
}

}  // namespace
}  // namespace gradsync
