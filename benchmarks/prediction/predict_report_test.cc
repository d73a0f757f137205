#include "benchmarks/prediction/predict_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// 100 MB in ten tensors, complete at even distances through backward.
proto::StepProfile Profile(double scale = 1) {
  proto::StepProfile profile;
  profile.set_model("net");
  profile.set_batch_size(8);
  profile.set_forward_us(scale * 50e3);
  profile.set_backward_us(scale * 100e3);
  for (int i = 1; i <= 10; ++i) {
    proto::ProfiledTensor* const tensor = profile.add_tensors();
    tensor->set_name("t" + std::to_string(i));
    tensor->set_numel(2500000);
    tensor->set_ready_us(scale * (50e3 + i * 10e3));
  }
  return profile;
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
  google::protobuf::RepeatedPtrField<proto::Run> runs;
  for (int workers : {2, 4}) {
    PredictedJob job = Job(workers);
    *runs.Add() = *PredictRun(Profile(), job);
    job.placed.spec.topology = Topology::kPs;
    job.placed.placement = Placement::kDedicated;
    job.placed.servers = 4;
    *runs.Add() = *PredictRun(Profile(), job);
  }
  const std::string table = PredictTable(runs);
  // With 2 workers the ring, with 4 the servers.
  EXPECT_THAT(table, ::testing::ContainsRegex("2  ring .*fastest"));
  EXPECT_THAT(table, ::testing::ContainsRegex("4  ps .*fastest"));
  EXPECT_THAT(table, Not(::testing::ContainsRegex("4  ring [^\n]*fastest")));
}

}  // namespace
}  // namespace gradsync
