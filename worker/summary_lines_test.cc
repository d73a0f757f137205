#include "worker/summary_lines.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

StepTimes Times() {
  StepTimes times;
  times.total = absl::Milliseconds(200);
  times.replicas.replicate = absl::Milliseconds(20);
  times.replicas.scatter = absl::Milliseconds(2);
  times.replicas.apply = absl::Milliseconds(100);
  times.replicas.gather = absl::Milliseconds(1);
  times.replicas.reduce = absl::Milliseconds(40);
  times.replicas.busy_first = absl::Milliseconds(97);
  times.replicas.busy_others = absl::Milliseconds(90);
  times.replicas.tx_bytes = 3000000;
  times.replicas.rx_bytes = 2000000;
  return times;
}

// Means over the steps; device 0 has 160 of 250 ms.
TEST(ReplicaLineTest, SaysWhereTheTimeIsAndWhatDevice0Bears) {
  EXPECT_EQ(ReplicaLine({Times(), Times()}, 2),
            "of a step 10.0 % replicate, 1.0 % scatter, 50.0 % apply, 0.5 % gather, 20.0 % reduce; "
            "device 0 does 64.0 % of the work of 2 replicas, sends them 3.0 MB a step and receives "
            "2.0 MB");
}

TEST(ReplicaLineTest, OneReplicaOrNoStepHasNothingToSay) {
  EXPECT_EQ(ReplicaLine({Times()}, 1), "");
  EXPECT_EQ(ReplicaLine({}, 2), "");
  EXPECT_EQ(ReplicaLine({StepTimes()}, 2), "");
}

// 30 of 40 ms, and 10.
TEST(StageLineTest, SaysForHowLongEachStageComputed) {
  StepTimes first, second;
  first.total = second.total = absl::Milliseconds(20);
  first.stages = {absl::Milliseconds(20), absl::Milliseconds(4)};
  second.stages = {absl::Milliseconds(10), absl::Milliseconds(6)};
  EXPECT_EQ(StageLine({first, second}, "5"),
            "stages computed for 75.0 %, 25.0 % of the time; cut before 5");
}

TEST(StageLineTest, NoStagesOrNoStepHaveNothingToSay) {
  EXPECT_EQ(StageLine({Times()}, ""), "");
  EXPECT_EQ(StageLine({}, "5"), "");
}

}  // namespace
}  // namespace gradsync
