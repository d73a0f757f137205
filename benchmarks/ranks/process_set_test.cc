#include "benchmarks/ranks/process_set.h"

#include "absl/time/time.h"
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

}  // namespace
}  // namespace gradsync
