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

ServerPlaces Places(int most) {
  ServerPlaces places;
  places.colocated = places.dedicated = true;
  places.most = most;
  return places;
}

std::string AdviceFor(const proto::StepProfile& profile, int workers, int most) {
  return Advise(profile, Job(workers), Places(most))->sentence;
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

// Both were refused: all ways were simulated as of workers that are alike.
TEST(PredictReportTest, AdviceIsOfStragglersAndSharedCoresToo) {
  PredictedJob slow = Job(4);
  slow.slowness = {1, 1, 1, 3};
  const absl::StatusOr<Advice> advice = Advise(Profile(), slow, Places(4));
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_THAT(advice->sentence, HasSubstr("For net on 4 workers at 1gbit use "));
  ASSERT_EQ(advice->tried.size(), 1u + 1 + 4);
  EXPECT_DOUBLE_EQ(advice->tried[0].step_ms_p50(), PredictRun(Profile(), slow)->step_ms_p50());
  PredictedJob shared = Job(2);
  shared.constants.cores.count = 2;
  EXPECT_EQ(Advise(Profile(), shared, Places(1)).status(), absl::OkStatus());
}

TEST(PredictReportTest, AdviceLeavesOutARingThatCannotBe) {
  PredictedJob job = Job(4);
  job.steps = 5;
  job.placed.spec.update = UpdateSite::kOwner;
  job.placed.spec.consistency = *ParseConsistency("ssp:2");
  const absl::StatusOr<Advice> advice = Advise(Profile(), job, Places(2));
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_THAT(advice->sentence, HasSubstr("; no ring can do what was asked for."));
  EXPECT_THAT(advice->sentence, Not(HasSubstr("the ring")));
  ASSERT_EQ(advice->tried.size(), 3u);
  for (const proto::Run& run : advice->tried) EXPECT_EQ(run.topology(), "ps");
  ServerPlaces apart = Places(2);
  apart.colocated = false;
  EXPECT_THAT(Advise(Profile(), job, apart)->sentence, HasSubstr("on hosts of their own, "));
  EXPECT_EQ(Advise(Profile(), job, ServerPlaces()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// In theory a ring's load is 1.5 of four workers, and 1.2 with two servers and four others.
TEST(PredictReportTest, AdviceTriesServersBesideWorkersAndApartAtOnce) {
  ServerPlaces places = Places(4);
  places.mixed = true;
  places.dedicated = false;
  const absl::StatusOr<Advice> advice = Advise(Profile(), Job(4), places);
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_THAT(
      advice->sentence,
      HasSubstr("use 3 parameter servers on hosts of their own and one beside each worker, "));
  EXPECT_THAT(advice->sentence, HasSubstr("already one server is faster than the ring"));
  EXPECT_EQ(advice->tried.size(), 1u + 1 + 3);  // fewer of their own than workers
  EXPECT_EQ(advice->tried.back().placement(), "mixed");
  places.dedicated = true;
  // With four of their own there is nothing left for others.
  EXPECT_THAT(Advise(Profile(), Job(4), places)->sentence,
              HasSubstr("use 4 parameter servers on hosts of their own, "));
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
