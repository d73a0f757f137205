#include "benchmarks/ranks/processes.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(ProcessSetTest, AllEndWell) {
  EXPECT_TRUE(RunProcesses({{"/bin/true"}, {"/bin/true"}}, kLong, nullptr).ok());
}

TEST(ProcessSetTest, TheFirstFailureEndsTheOthersAndIsQuoted) {
  const MonotonicTime before = MonotonicTime::Now();
  const absl::Status status = RunProcesses(
      {{"/bin/sleep", "50"}, {"/bin/sh", "-c", "echo no such rank >&2; exit 3"}}, kLong, nullptr);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no such rank [exit code 3]"));
  EXPECT_LT(MonotonicTime::Now() - before, absl::Seconds(40));
}

TEST(ProcessSetTest, SilenceIsADeadlineExceeded) {
  const absl::Status status = RunProcesses({{"/bin/sleep", "50"}}, absl::Milliseconds(50), nullptr);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(ProcessSetTest, ASignalCancels) {
  const std::atomic<int> interrupt{2};
  EXPECT_TRUE(absl::IsCancelled(RunProcesses({{"/bin/sleep", "50"}}, kLong, &interrupt)));
}

TEST(ProcessSetTest, AProgramThatIsNotThereIsNamed) {
  const absl::Status status = RunProcesses({{"/no/such/program"}}, kLong, nullptr);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/program"));
}

std::unique_ptr<InteractiveProcess> Shell(const std::string& script) {
  return *InteractiveProcess::Start({"/bin/sh", "-c", script}, {"GREETING=hello"});
}

TEST(InteractiveProcessTest, LinesAreAnsweredWithLines) {
  const auto shell = Shell("echo $GREETING; echo again; read x; echo got $x");
  EXPECT_EQ(*shell->ReadLine(), "hello");
  EXPECT_EQ(*shell->ReadLine(Deadline::In(absl::Seconds(60))), "again");
  ASSERT_TRUE(shell->WriteLine("7").ok());
  EXPECT_EQ(*shell->ReadLine(), "got 7");
  EXPECT_EQ(shell->ReadLine().status().code(), absl::StatusCode::kUnavailable);
}

// A peer that hung kept its whole comparison waiting.
TEST(InteractiveProcessTest, OneThatSaysNothingIsNotWaitedForForEver) {
  const auto shell = Shell("read x; echo late");
  EXPECT_EQ(shell->ReadLine(Deadline::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(shell->WriteLine("").ok());
  EXPECT_EQ(*shell->ReadLine(), "late");
}

TEST(InteractiveProcessTest, OneThatDoesNotEndIsKilled) { Shell("exec sleep 1000"); }

}  // namespace
}  // namespace gradsync
