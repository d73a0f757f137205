#include "core/sync/launch_order.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

StepOptions Step(int64_t number, double lr = 0.1) {
  StepOptions step;
  step.step = number;
  step.lr = lr;
  return step;
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << "\nlacks " << text;
}

TEST(LaunchOrderTest, BucketsComeInOrderAndStepsGrow) {
  LaunchOrder order(2);
  ExpectRefused(order.Check(Step(1), 1), "expected bucket 0 of 2, found bucket 1");
  ExpectRefused(order.Check(Step(0), 0), "launch of step 0");
  EXPECT_EQ(order.Check(Step(3), 0), absl::OkStatus());
  ExpectRefused(order.Check(Step(4), 0), "expected bucket 1");
  ExpectRefused(order.Check(Step(3, 0.2), 1), "lr 0.1");
  EXPECT_EQ(order.Check(Step(3), 1), absl::OkStatus());
  ExpectRefused(order.Check(Step(3), 0), "expected a step after 3");
  EXPECT_EQ(order.Check(Step(5), 0), absl::OkStatus());
}

TEST(LaunchOrderTest, AStepWaitsForAllHandlesOfTheOneBefore) {
  LaunchOrder order(2);
  const SyncPromise first("bucket 0"), second("bucket 1");
  ASSERT_EQ(order.Check(Step(1), 0), absl::OkStatus());
  order.Launched(first.handle());
  ASSERT_EQ(order.Check(Step(1), 1), absl::OkStatus());
  order.Launched(second.handle());
  first.Resolve(absl::OkStatus());
  ExpectRefused(order.Check(Step(2), 0), "expected all handles of step 1 to be resolved");
  ExpectRefused(order.Check(Step(2), 0), "bucket 1");
  second.Resolve(absl::OkStatus());
  EXPECT_EQ(order.Check(Step(2), 0), absl::OkStatus());
  // Those of the step before are forgotten.
  order.Launched(ResolvedHandle(absl::OkStatus()));
  EXPECT_EQ(order.Check(Step(2), 1), absl::OkStatus());
  order.Launched(ResolvedHandle(absl::OkStatus()));
  EXPECT_EQ(order.Check(Step(3), 0), absl::OkStatus());
}

}  // namespace
}  // namespace gradsync
