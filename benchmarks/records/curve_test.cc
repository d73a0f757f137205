#include "benchmarks/records/curve.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

proto::WorkerMetrics Worker(const std::vector<double>& ends, const std::vector<double>& losses) {
  proto::WorkerMetrics worker;
  for (double end : ends) worker.add_step_end_seconds(end);
  for (double loss : losses) worker.add_loss(loss);
  return worker;
}

proto::Run Falling(int points) {
  proto::Run run;
  for (int i = 1; i <= points; ++i) {
    proto::CurvePoint& point = *run.add_curve();
    point.set_seconds(i);
    point.set_step(i);
    point.set_loss(10.0 / i);
  }
  return run;
}

TEST(CurveTest, StepsInLockstepArePointsOfTheirOwn) {
  proto::Run run;
  SetCurve({Worker({1.0, 2.0}, {4, 2}), Worker({1.1, 1.9}, {6, 4})}, &run);
  ASSERT_EQ(run.curve_size(), 2);
  EXPECT_DOUBLE_EQ(run.curve(0).seconds(), 1.1);
  EXPECT_DOUBLE_EQ(run.curve(0).loss(), 5);
  EXPECT_DOUBLE_EQ(run.curve(1).seconds(), 2.0);
  EXPECT_DOUBLE_EQ(run.curve(1).step(), 2);
  EXPECT_DOUBLE_EQ(run.curve(1).loss(), 3);
}

TEST(CurveTest, AFastWorkersStepsFillTheGroups) {
  proto::Run run;
  SetCurve({Worker({1, 2, 3, 4}, {8, 6, 4, 2}), Worker({4.5, 9, 13.5, 18}, {8, 8, 8, 8})}, &run);
  ASSERT_EQ(run.curve_size(), 4);
  EXPECT_DOUBLE_EQ(run.curve(0).seconds(), 2);
  EXPECT_DOUBLE_EQ(run.curve(0).loss(), 7);
  EXPECT_DOUBLE_EQ(run.curve(1).seconds(), 4);
  EXPECT_DOUBLE_EQ(run.curve(3).seconds(), 18);
}

TEST(CurveTest, AccuraciesAreInTheFirstPointThatIsNotEarlier) {
  std::vector<proto::WorkerMetrics> workers = {Worker({1, 2}, {1, 1})};
  proto::CurvePoint& early = *workers[0].add_accuracy_curve();
  early.set_seconds(1.5);
  early.set_accuracy(0.25);
  proto::CurvePoint& late = *workers[0].add_accuracy_curve();
  late.set_seconds(3);
  late.set_accuracy(0.5);
  proto::Run run;
  SetCurve(workers, &run);
  EXPECT_EQ(run.curve(0).accuracy(), 0);
  EXPECT_EQ(run.curve(1).accuracy(), 0.5);  // the later one of the two
  EXPECT_EQ(SecondsToAccuracy(run, 0.4), 2);
  EXPECT_FALSE(SecondsToAccuracy(run, 0.6).has_value());
}

TEST(CurveTest, TheRateCountsTheTimeInWhichAllTrain) {
  EXPECT_DOUBLE_EQ(
      StepsPerSecond({Worker({1, 2, 3, 4}, {1, 1, 1, 1}), Worker({2, 4, 6, 8}, {1, 1, 1, 1})}),
      (4 + 2) / (2 * 4.0));
  EXPECT_EQ(StepsPerSecond({Worker({}, {})}), 0);
  EXPECT_DOUBLE_EQ(StepsPerSecond({Worker({1, 2}, {}), Worker({1, 2}, {})}), 1);  // no losses
}

TEST(CurveTest, AnEntryMayStandForManySteps) {
  std::vector<proto::WorkerMetrics> workers = {Worker({4, 8}, {3, 1})};
  workers[0].set_step_stride(16);
  proto::Run run;
  SetCurve(workers, &run);
  EXPECT_DOUBLE_EQ(run.curve(0).step(), 16);
  EXPECT_DOUBLE_EQ(run.curve(1).step(), 32);
  EXPECT_DOUBLE_EQ(StepsPerSecond(workers), 4);
}

// A worker that is late by little has not done a whole step less.
TEST(CurveTest, TheRateCountsPartsOfSteps) {
  EXPECT_DOUBLE_EQ(StepsPerSecond({Worker({1, 2}, {1, 1}), Worker({1, 2.25}, {1, 1})}),
                   (2 + 1 + 0.8) / (2 * 2.0));
}

TEST(CurveTest, TheTimeToALossIsThatOfTheSmoothedCurve) {
  EXPECT_EQ(SecondsToLoss(Falling(10), 5), 2);  // no smoothing of so few points
  EXPECT_FALSE(SecondsToLoss(Falling(10), 0.5).has_value());
  proto::Run spike = Falling(100);
  spike.mutable_curve(49)->set_loss(0);  // one lucky batch
  EXPECT_GT(*SecondsToLoss(spike, 0.15), 60);
}

TEST(CurveTest, WithoutTimesThereIsNoCurve) {
  proto::Run run;
  SetCurve({Worker({}, {1, 2})}, &run);
  EXPECT_EQ(run.curve_size(), 0);
}

proto::Run& AddRun(proto::RunRecords* records, const char* consistency, double speed) {
  proto::Run& run = *records->add_runs();
  run.set_topology("ps");
  run.set_workers(4);
  run.set_update("owner");
  run.set_consistency(consistency);
  run.set_steps_per_s(speed);
  for (int i = 1; i <= 10; ++i) {
    proto::CurvePoint& point = *run.add_curve();
    point.set_seconds(i / speed);
    point.set_loss(10.0 / i);
  }
  return run;
}

TEST(CurveReportTest, UnderBspAloneThereIsNoTable) {
  proto::RunRecords records;
  AddRun(&records, "bsp", 1);
  EXPECT_EQ(FormatCurves(records), "");
}

TEST(CurveReportTest, RunsAreHeldToTheLossThatAllReach) {
  proto::RunRecords records;
  AddRun(&records, "bsp", 1);
  proto::Run& asp = AddRun(&records, "asp", 4);
  asp.mutable_curve(9)->set_loss(1.1);  // ends worse than bsp, which ends with 1.0
  asp.mutable_curve(9)->set_accuracy(0.5);
  asp.set_max_staleness(2);
  for (double steps : {3.0, 1.0, 6.0}) asp.add_staleness_histogram(steps);
  const std::string table = FormatCurves(records);
  EXPECT_THAT(table, ContainsRegex("bsp .* 10[.]0 [(]1[.]100[)]"));
  EXPECT_THAT(table, ContainsRegex("asp .* 4[.]00 .* 2[.]5 [(]1[.]100[)] .* 2[.]5 [(]50[.]0 %[)]"));
  EXPECT_THAT(table, HasSubstr("30 10 60"));
}

}  // namespace
}  // namespace gradsync
