#include "worker/models/loss.h"

#include <cmath>

#include "ATen/ops/tensor.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(LossTest, CrossEntropyIsTheMeanOverTheBatch) {
  const at::Tensor logits = at::tensor({0.0f, 0.0f, 0.0f, std::log(3.0f)}).view({2, 2});
  const at::Tensor labels = at::tensor({int64_t{0}, int64_t{1}});
  EXPECT_NEAR(CrossEntropy(logits, labels).item<float>(), (std::log(2.0) + std::log(4.0 / 3.0)) / 2,
              1e-6);
}

TEST(LossTest, CountCorrectCountsTheLargestLogits) {
  const at::Tensor logits = at::tensor({1.f, 2.f, 3.f, 3.f, 2.f, 1.f, 0.f, 5.f, 0.f}).view({3, 3});
  EXPECT_EQ(CountCorrect(logits, at::tensor({int64_t{2}, int64_t{0}, int64_t{1}})), 3);
  EXPECT_EQ(CountCorrect(logits, at::tensor({int64_t{2}, int64_t{1}, int64_t{0}})), 1);
}

}  // namespace
}  // namespace gradsync
