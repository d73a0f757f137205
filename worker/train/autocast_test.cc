#include "worker/train/autocast.h"

#include "ATen/ops/linear.h"
#include "ATen/ops/randn.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace gradsync
