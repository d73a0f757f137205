#include "benchmarks/records/curve_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

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
