// The arithmetic of the pooling kernels, run on the host, against LibTorch's operation.
#include "worker/models/pool_window.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/randint.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/models/channel_parts.h"

namespace gradsync {
namespace {

// Images as [image, row, column, channel], with kPart channels.
struct Images {
  int64_t rows, columns;
  float* data;

  Floats& At(int64_t image, int64_t row, int64_t column) const {
    return *reinterpret_cast<Floats*>(data + ((image * rows + row) * columns + column) * kPart);
  }
};

class PoolWindowTest : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  PoolWindowTest() {
    shape_.images = 2;
    shape_.height = GetParam().first;
    shape_.width = GetParam().second;
    shape_.channels = kPart;
    // Few values, so that many are equal.
    x_ = at::randint(-3, 3, {2, kPart, shape_.height, shape_.width}, at::kFloat)
             .contiguous(at::MemoryFormat::ChannelsLast);
  }

  Images ImagesOf(const at::Tensor& t) const { return {t.size(2), t.size(3), t.data_ptr<float>()}; }

  template <typename Visit>
  void ForWindows(const Visit& visit) const {
    for (int64_t image = 0; image < shape_.images; ++image) {
      for (int64_t row = 0; row < shape_.rows(); ++row) {
        for (int64_t column = 0; column < shape_.columns(); ++column) {
          visit(PoolPlace{image, row, column});
        }
      }
    }
  }

  // Values and, in codes_, where they are.
  at::Tensor Pool() {
    const at::Tensor y = at::empty({2, kPart, shape_.rows(), shape_.columns()}, x_.options(),
                                   at::MemoryFormat::ChannelsLast);
    codes_.resize(static_cast<size_t>(shape_.windows()));
    ForWindows([&](const PoolPlace& place) {
      const auto load = [&](int code) {
        return ImagesOf(x_).At(place.image, place.pixel_row(code), place.pixel_column(code));
      };
      LargestOfWindow(shape_, place, load, &ImagesOf(y).At(place.image, place.row, place.column),
                      &CodesAt(place.image, place.row, place.column));
    });
    return y;
  }

  at::Tensor Gradient(const at::Tensor& dy) {
    const at::Tensor dx = at::empty_like(x_);
    ForWindows([&](const PoolPlace& block) {
      const auto has = [&](int p, int q) {
        return block.row + p < shape_.rows() && block.column + q < shape_.columns();
      };
      const auto gradient = [&](int p, int q) -> const Floats& {
        return ImagesOf(dy).At(block.image, block.row + p, block.column + q);
      };
      const auto codes = [&](int p, int q) -> const Codes& {
        return CodesAt(block.image, block.row + p, block.column + q);
      };
      for (int i : {0, 1}) {
        for (int j : {0, 1}) {
          const int64_t row = 2 * block.row + i, column = 2 * block.column + j;
          if (row >= shape_.height || column >= shape_.width) continue;
          ImagesOf(dx).At(block.image, row, column) = GradientOfPixel(i, j, has, gradient, codes);
        }
      }
    });
    return dx;
  }

  Codes& CodesAt(int64_t image, int64_t row, int64_t column) {
    return codes_[static_cast<size_t>((image * shape_.rows() + row) * shape_.columns() + column)];
  }

  PoolShape shape_;
  at::Tensor x_;
  std::vector<Codes> codes_;
};

INSTANTIATE_TEST_SUITE_P(Sizes, PoolWindowTest,
                         ::testing::Values(std::make_pair(8, 8), std::make_pair(7, 5),
                                           std::make_pair(1, 6), std::make_pair(1, 1)));

TEST_P(PoolWindowTest, ValuesAndGradientsAreThoseOfTheOperation) {
  x_.requires_grad_(true);
  const at::Tensor expected = at::max_pool2d(x_, 3, 2, 1);
  const at::Tensor dy =
      at::randint(1, 100, expected.sizes(), at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor expected_dx = torch::autograd::grad({expected}, {x_}, {dy})[0];
  EXPECT_TRUE(Pool().equal(expected));
  EXPECT_TRUE(Gradient(dy).equal(expected_dx));
}

TEST_P(PoolWindowTest, NansAndInfinitiesAreNotHidden) {
  x_.fill_(-std::numeric_limits<float>::infinity());
  // In a window's first pixel and, where it has more, in its last.
  x_[0][3][0][0] = std::numeric_limits<float>::quiet_NaN();
  x_[1][2][-1][-1] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor expected = at::max_pool2d(x_, 3, 2, 1);
  EXPECT_TRUE(Pool().allclose(expected, 0, 0, /*equal_nan=*/true));
  EXPECT_TRUE(Pool()[0][3][0][0].isnan().item<bool>());
  EXPECT_TRUE(Pool()[1][2][-1][-1].isnan().item<bool>());
}

}  // namespace
}  // namespace gradsync
