#include "benchmarks/ranks/interactive_process.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

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
