#include "core/base/fifo.h"

#include <deque>
#include <memory>
#include <random>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(FifoTest, ElementsComeOutInOrderAcrossGrowthAndWrapping) {
  Fifo<std::unique_ptr<int>> fifo;
  std::deque<int> expected;
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    if (random() % 100 < (i < 5000 ? 52 : 48)) {
      fifo.push_back(std::make_unique<int>(i));
      expected.push_back(i);
    } else if (!expected.empty()) {
      EXPECT_EQ(*fifo.front(), expected.front());
      EXPECT_EQ(*fifo[expected.size() - 1], expected.back());
      EXPECT_EQ(*fifo.pop_front(), expected.front());
      expected.pop_front();
    }
    ASSERT_EQ(fifo.size(), expected.size());
    ASSERT_EQ(fifo.empty(), expected.empty());
  }
}

TEST(FifoTest, WhatWasTakenIsNotKeptAlive) {
  Fifo<std::shared_ptr<int>> fifo;
  const auto value = std::make_shared<int>(7);
  fifo.push_back(value);
  fifo.push_back(value);
  EXPECT_EQ(value.use_count(), 3);
  fifo.pop_front();
  EXPECT_EQ(value.use_count(), 2);
  fifo.clear();
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace gradsync
