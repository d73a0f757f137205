#include "core/base/status_macros.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::Status Count(absl::Status first, int* evaluated, bool* reached_end) {
  GS_RETURN_IF_ERROR((++*evaluated, first));
  *reached_end = true;
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(int a, int b) {
  GS_ASSIGN_OR_RETURN(std::unique_ptr<int> left, Make(a));
  std::unique_ptr<int> right;
  GS_ASSIGN_OR_RETURN(right, Make(b));
  return *left + *right;
}

TEST(StatusMacrosTest, ReturnIfErrorEvaluatesOnceAndPassesOk) {
  int evaluated = 0;
  bool reached_end = false;
  EXPECT_TRUE(Count(absl::OkStatus(), &evaluated, &reached_end).ok());
  EXPECT_EQ(evaluated, 1);
  EXPECT_TRUE(reached_end);
}

TEST(StatusMacrosTest, ReturnIfErrorKeepsCodeAndMessage) {
  int evaluated = 0;
  bool reached_end = false;
  absl::Status status = Count(absl::DataLossError("short"), &evaluated, &reached_end);
  EXPECT_EQ(status, absl::DataLossError("short"));
  EXPECT_EQ(evaluated, 1);
  EXPECT_FALSE(reached_end);
}

TEST(StatusMacrosTest, AssignOrReturnMovesValuesAndReturnsTheFirstError) {
  EXPECT_EQ(Sum(2, 3).value(), 5);
  EXPECT_EQ(Sum(-1, 3).status(), absl::OutOfRangeError("negative"));
  EXPECT_EQ(Sum(2, -1).status(), absl::OutOfRangeError("negative"));
}

}  // namespace
}  // namespace gradsync
