#include "benchmarks/prediction/predict_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

proto::StepProfile Profile(double scale = 1) {
  return EvenProfile("net", std::vector<int64_t>(10, 2500000), scale * 50e3, scale * 100e3, 0, 8);
}

PredictedJob Job(int workers) {
  PredictedJob job;
  job.placed.spec.topology = Topology::kRing;
  job.placed.workers = workers;
  job.placed.bandwidth = "1gbit";
  return job;
}

std::string AdviceFor(const proto::StepProfile& profile, int workers, int most) {
  return *Advise(profile, Job(workers), most, /*colocated=*/true);
}

TEST(PredictReportTest, AdviceNamesTheNumberOfServersAtWhichItFlips) {
  const std::string four = AdviceFor(Profile(), 4, 4);
  EXPECT_THAT(four, HasSubstr("For net on 4 workers at 1gbit use 4 parameter servers"));
  EXPECT_THAT(four, HasSubstr("with fewer than 3 the ring is as fast or faster"));
  EXPECT_THAT(four, HasSubstr("with 3 the servers begin to win"));
  EXPECT_THAT(four, HasSubstr("% less than with the ring"));
  EXPECT_EQ(std::count(four.begin(), four.end(), '\n'), 0);
}

TEST(PredictReportTest, AdviceIsTheRingWhereServersGainNothing) {
  EXPECT_THAT(AdviceFor(Profile(), 4, 2), HasSubstr("use the ring"));
  EXPECT_THAT(AdviceFor(Profile(), 2, 2), HasSubstr("use the ring"));
  // All communication is hidden.
  EXPECT_THAT(AdviceFor(Profile(100), 8, 8), HasSubstr("use the ring"));
  EXPECT_THAT(AdviceFor(Profile(), 4, 0), Not(HasSubstr("servers on hosts")));
}

TEST(PredictReportTest, TheTableMarksTheFastestOfEachNumberOfWorkers) {
  std::vector<proto::Run> runs;
  for (int workers : {2, 4}) {
    PredictedJob job = Job(workers);
    runs.push_back(*PredictRun(Profile(), job));
    job.placed.spec.topology = Topology::kPs;
    job.placed.placement = Placement::kDedicated;
    job.placed.servers = 4;
    runs.push_back(*PredictRun(Profile(), job));
  }
  const std::string table = PredictTable(runs);
  // With 2 workers the ring, with 4 the servers.
  EXPECT_THAT(table, ::testing::ContainsRegex("2  ring .*fastest"));
  EXPECT_THAT(table, ::testing::ContainsRegex("4  ps .*fastest"));
  EXPECT_THAT(table, Not(::testing::ContainsRegex("4  ring [^\n]*fastest")));
}

}  // namespace
}  // namespace gradsync
