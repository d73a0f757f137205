#include "core/base/block_pool.h"

#include <array>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(BlockPoolTest, MemoryThatCameBackIsUsedAgain) {
  const auto pool = std::make_shared<BlockPool>();
  std::shared_ptr<int> first = MakePooled<int>(pool, 1);
  const int* const place = first.get();
  const std::shared_ptr<int> second = MakePooled<int>(pool, 2);
  EXPECT_NE(second.get(), place);
  first.reset();
  EXPECT_EQ(MakePooled<int>(pool, 3).get(), place);
  EXPECT_EQ(*second, 2);
}

TEST(BlockPoolTest, ObjectsOfAnotherSizeAndLaterThanThePoolsOwnerWork) {
  auto pool = std::make_shared<BlockPool>();
  const std::shared_ptr<int> small = MakePooled<int>(pool, 5);
  std::shared_ptr<std::array<double, 100>> large = MakePooled<std::array<double, 100>>(pool);
  (*large)[99] = 1;
  large.reset();
  pool.reset();
  EXPECT_EQ(*small, 5);
}

TEST(BlockPoolTest, ThreadsMayTakeAndPutAtTheSameTime) {
  const auto pool = std::make_shared<BlockPool>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::vector<std::shared_ptr<int>> held(8);
      for (int i = 0; i < 20000; ++i) {
        std::shared_ptr<int>& slot = held[i % held.size()];
        if (slot != nullptr) {
          ASSERT_EQ(*slot, t);
        }
        slot = MakePooled<int>(pool, t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradsync
