#include "worker/train/count_tensor_memory.h"

#include <memory>
#include <thread>

#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int64_t kMega = 1 << 20;
constexpr int64_t kSlack = 64 << 10;  // malloc rounds up, and small tensors come and go

at::Tensor Megabytes(int64_t count) { return at::empty({count * kMega}, at::kByte); }

TEST(CountTensorMemoryTest, ThePeakIsWhatWasAllocatedAtOnce) {
  const std::unique_ptr<TensorMemory> memory = CountTensorMemory(nullptr);
  memory->StartPeak();
  const int64_t before = memory->PeakBytes();
  const at::Tensor kept = Megabytes(1);
  for (int i = 0; i < 5; ++i) Megabytes(3);
  EXPECT_NEAR(memory->PeakBytes() - before, 4 * kMega, kSlack);
  memory->StartPeak();
  EXPECT_NEAR(memory->PeakBytes() - before, kMega, kSlack);
}

TEST(CountTensorMemoryTest, WhatOtherThreadsAllocateAndFreeCountsToo) {
  const std::unique_ptr<TensorMemory> memory = CountTensorMemory(nullptr);
  memory->StartPeak();
  const int64_t before = memory->PeakBytes();
  at::Tensor made;
  std::thread([&] { made = Megabytes(2); }).join();
  EXPECT_NEAR(memory->PeakBytes() - before, 2 * kMega, kSlack);
  made = at::Tensor();
  memory->StartPeak();
  EXPECT_NEAR(memory->PeakBytes(), before, kSlack);
}

// Blocks of the allocator before are freed as they were made.
TEST(CountTensorMemoryTest, TensorsThatAreOlderThanTheCounterLiveOn) {
  at::Tensor older = Megabytes(2);
  const std::unique_ptr<TensorMemory> memory = CountTensorMemory(nullptr);
  older.resize_({4 * kMega});
  EXPECT_EQ(older.fill_(3).sum().item<int64_t>(), 12 * kMega);
  EXPECT_EQ(at::ones({0}).numel(), 0);
  older = at::Tensor();
}

}  // namespace
}  // namespace gradsync
