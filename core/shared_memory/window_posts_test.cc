#include "core/shared_memory/window_posts.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr WindowPosts::Note kNote = {1, 2, 3, 4};

// Memory of so many workers, and each one's view of all.
class Memory {
 public:
  Memory(int workers, int64_t floats) {
    const int64_t lines = WindowPosts::BytesOf(floats) / 64;
    std::vector<char*> begins;
    for (int worker = 0; worker < workers; ++worker) {
      begins.push_back(memory_.emplace_back(lines)[0].bytes);
    }
    for (int worker = 0; worker < workers; ++worker) posts_.emplace_back(begins, floats, worker);
  }

  const WindowPosts& of(int worker) const { return posts_[worker]; }

  // As if the worker had not written that line of its first post yet, nor the mark at its end.
  void ForgetLastLine(int worker) {
    std::fill(std::begin(memory_[worker].back().bytes), std::end(memory_[worker].back().bytes), 0);
  }

 private:
  struct alignas(64) Line {
    char bytes[64] = {};
  };
  std::vector<std::vector<Line>> memory_;
  std::vector<WindowPosts> posts_;
};

TEST(WindowPostsTest, AllAreThereWhenTheLastIs) {
  for (int workers : {1, 2, 3}) {
    const Memory memory(workers, 5);
    const std::vector<float> grad(5, 1);
    for (int64_t launch : {1, 2, 3}) {
      for (int worker = 0; worker < workers; ++worker) {
        EXPECT_FALSE(memory.of(0).AllThere(launch)) << workers << " " << launch << " " << worker;
        memory.of(worker).Write(launch, kNote, grad.data());
      }
      for (int worker = 0; worker < workers; ++worker) {
        EXPECT_TRUE(memory.of(worker).AllThere(launch));
        EXPECT_FALSE(memory.of(worker).AllThere(launch + 1));
      }
    }
  }
}

TEST(WindowPostsTest, OthersSeeWhatWasWritten) {
  for (int64_t floats : {1, 6, 7, 8, 21, 22, 23, 64, 128}) {
    const Memory memory(2, floats);
    std::vector<float> grad(static_cast<size_t>(floats));
    for (size_t i = 0; i < grad.size(); ++i) grad[i] = 0.5f * static_cast<float>(i + 1);
    memory.of(1).Write(1, kNote, grad.data());
    EXPECT_EQ(memory.of(0).note(1, 1), kNote);
    std::vector<float> seen(grad.size() + 1);  // and nothing behind it
    memory.of(0).Read(1, 1, seen.data());
    EXPECT_EQ(seen.back(), 0);
    seen.pop_back();
    EXPECT_EQ(seen, grad) << floats;
  }
}

// Whoever is a launch ahead must not take it from those who still read the one before.
TEST(WindowPostsTest, ALaunchLeavesTheOneBeforeWhereItIs) {
  const Memory memory(2, 3);
  const std::vector<float> first = {1, 2, 3};
  const std::vector<float> second = {4, 5, 6};
  for (int worker : {0, 1}) memory.of(worker).Write(1, kNote, first.data());
  memory.of(0).Write(2, {5, 6, 7, 8}, second.data());
  memory.of(0).FetchNext(2);
  EXPECT_TRUE(memory.of(1).AllThere(1));
  EXPECT_EQ(memory.of(1).note(0, 1), kNote);
  std::vector<float> seen(3);
  memory.of(1).Read(0, 1, seen.data());
  EXPECT_EQ(seen, first);
  memory.of(1).Read(0, 2, seen.data());
  EXPECT_EQ(seen, second);
}

TEST(WindowPostsTest, APostIsThereWhenItsLastLineIs) {
  Memory memory(2, 100);
  const std::vector<float> grad(100, 1);
  memory.of(0).Write(1, kNote, grad.data());
  memory.of(1).Write(1, kNote, grad.data());
  EXPECT_TRUE(memory.of(0).AllThere(1));
  memory.ForgetLastLine(1);
  EXPECT_FALSE(memory.of(0).AllThere(1));
}

// The first line has the note and seven floats, each other one fifteen.
TEST(WindowPostsTest, TakesAsFewLinesAsItCan) {
  EXPECT_EQ(WindowPosts::BytesOf(1), 2 * 64);
  EXPECT_EQ(WindowPosts::BytesOf(7), 2 * 64);
  EXPECT_EQ(WindowPosts::BytesOf(8), 2 * 128);
  EXPECT_EQ(WindowPosts::BytesOf(22), 2 * 128);
  EXPECT_EQ(WindowPosts::BytesOf(23), 2 * 192);
}

}  // namespace
}  // namespace gradsync
