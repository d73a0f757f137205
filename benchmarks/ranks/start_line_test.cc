#include "benchmarks/ranks/start_line.h"

#include <stdlib.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

std::string NewFile() {
  std::string folder = testing::TempDir() + "/start_line_XXXXXX";
  return std::string(mkdtemp(folder.data())) + "/line";
}

TEST(StartLineTest, NobodyPassesARoundBeforeAllHaveCome) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 500;
  const std::string path = NewFile();
  std::atomic<int> came{0};
  std::atomic<int> early{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&] {
      const auto line = *StartLine::Open(path, kRanks);
      for (int round = 1; round <= kRounds; ++round) {
        ++came;
        if (!line->Wait(Soon()).ok() || came < round * kRanks) ++early;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(early, 0);
  EXPECT_EQ(came, kRanks * kRounds);
}

TEST(StartLineTest, OneRankNeverWaits) {
  const auto line = *StartLine::Open(NewFile(), 1);
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(line->Wait(Deadline::Now()).ok());
}

TEST(StartLineTest, AMissingRankIsNoticedAtTheDeadline) {
  const auto line = *StartLine::Open(NewFile(), 3);
  const absl::Status status = line->Wait(Deadline::In(absl::Milliseconds(10)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "start line: expected 3 ranks, found 1 in time");
}

TEST(StartLineTest, SpreadingComputesAndDoesNotSleep) {
  const double before = CpuSeconds();
  SpreadOverCores();
  EXPECT_GT(CpuSeconds() - before, 0.001);
}

TEST(StartLineTest, AFileThatCannotBeMadeIsNamed) {
  const absl::Status status = StartLine::Open("/nowhere/line", 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/nowhere/line"), absl::string_view::npos);
}

}  // namespace
}  // namespace gradsync
