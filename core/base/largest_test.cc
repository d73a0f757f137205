#include "core/base/largest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::vector<uint32_t> Largest(const std::vector<float>& x, size_t k) {
  std::vector<uint32_t> indices(k);
  SelectLargest(x.data(), x.size(), k, indices.data());
  return indices;
}

// By a stable sort of the whole.
std::vector<uint32_t> Sorted(const std::vector<float>& x, size_t k) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectLargestTest, AgreesWithASortForEveryCount) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(400);
  for (float& value : x) value = normal(random) * std::exp2(static_cast<float>(random() % 20));
  for (size_t k = 1; k <= x.size(); ++k) EXPECT_EQ(Largest(x, k), Sorted(x, k)) << k;
}

TEST(SelectLargestTest, OfEqualOnesTakesTheFirst) {
  std::mt19937 random(2);
  std::vector<float> x(300);
  for (float& value : x) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  for (size_t k = 1; k <= x.size(); ++k) EXPECT_EQ(Largest(x, k), Sorted(x, k)) << k;
  EXPECT_EQ(Largest(std::vector<float>(5, 0.0f), 3), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(SelectLargestTest, WhatIsNotFiniteComesFirst) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {1, 3e38f, -inf, 0, -nan, 2};
  EXPECT_EQ(Largest(x, 1), (std::vector<uint32_t>{4}));
  EXPECT_EQ(Largest(x, 2), (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(Largest(x, 3), (std::vector<uint32_t>{1, 2, 4}));
}

TEST(SelectLargestTest, DenormalsAreToldApart) {
  const std::vector<float> x = {1e-45f, 0, -3e-45f, 2.8e-45f};
  EXPECT_EQ(Largest(x, 1), (std::vector<uint32_t>{2}));
  EXPECT_EQ(Largest(x, 3), (std::vector<uint32_t>{0, 2, 3}));
}

TEST(SelectLargestTest, NothingOfNothing) { SelectLargest(nullptr, 0, 0, nullptr); }

}  // namespace
}  // namespace gradsync
