#include "worker/models/resnet.h"

#include "ATen/ops/conv2d.h"
#include "ATen/ops/randn.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace gradsync {
namespace {

constexpr auto kFormat = at::MemoryFormat::ChannelsLast;

TEST(PairedPixelsTest, IsTheConvolutionWithinRounding) {
  const at::Tensor x = at::randn({2, 3, 10, 14}, at::kDouble).contiguous(kFormat);
  const at::Tensor weight =
      at::randn({8, 3, 7, 7}, at::kDouble).contiguous(kFormat).requires_grad_();
  ASSERT_TRUE(TakesPairedPixels(x, weight));
  const at::Tensor expected = at::conv2d(x, weight, {}, /*stride=*/2, /*padding=*/3);
  const at::Tensor found = ConvolvePairedPixels(x, weight);
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(found.allclose(expected, 1e-12, 1e-12));
  EXPECT_TRUE(found.is_contiguous(kFormat));
  const at::Tensor dy = at::randn(expected.sizes(), at::kDouble);
  const at::Tensor gradient = torch::autograd::grad({found}, {weight}, {dy})[0];
  EXPECT_TRUE(
      gradient.allclose(torch::autograd::grad({expected}, {weight}, {dy})[0], 1e-12, 1e-12));
}

TEST(PairedPixelsTest, OtherConvolutionsAreNotTaken) {
  const at::Tensor weight = at::randn({8, 3, 7, 7});
  EXPECT_FALSE(TakesPairedPixels(at::randn({1, 3, 9, 8}), weight));
  EXPECT_FALSE(TakesPairedPixels(at::randn({1, 3, 8, 9}), weight));
  EXPECT_FALSE(TakesPairedPixels(at::randn({1, 4, 8, 8}), weight));
  EXPECT_FALSE(TakesPairedPixels(at::randn({1, 3, 8, 8}), at::randn({8, 3, 3, 3})));
  EXPECT_FALSE(TakesPairedPixels(at::randn({1, 3, 8, 8}).requires_grad_(), weight));
}

}  // namespace
}  // namespace gradsync
