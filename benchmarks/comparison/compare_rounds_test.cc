#include "benchmarks/comparison/compare_rounds.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<Configuration> Configurations(const std::vector<std::pair<std::string, int>>& kinds) {
  std::vector<Configuration> all;
  for (const auto& [bandwidth, workers] : kinds) {
    Configuration next;
    next.job.bandwidth = bandwidth;
    next.job.workers = workers;
    all.push_back(next);
  }
  return all;
}

proto::Run Round(double rate, const std::string& hash = "aa") {
  proto::Run run;
  run.set_topology("ring");
  run.set_samples_per_s(rate);
  run.set_step_ms_p50(1e4 / rate);
  run.set_cpu_ms_per_step(rate);
  run.set_params_sha256(hash);
  return run;
}

// What was compared ran once each, parameter servers first and the ring last.
TEST(OrderOfRoundTest, TheFirstOfOneRoundIsLaterInTheNext) {
  const auto two = Configurations({{"", 2}, {"", 2}});
  EXPECT_THAT(OrderOfRound(two, 0, 3), ElementsAre(0, 1));
  EXPECT_THAT(OrderOfRound(two, 1, 3), ElementsAre(1, 0));
  const auto six = Configurations({{"", 2}, {"", 2}, {"", 2}, {"", 2}, {"", 2}, {"", 2}});
  EXPECT_THAT(OrderOfRound(six, 1, 3), ElementsAre(2, 3, 4, 5, 0, 1));
  EXPECT_THAT(OrderOfRound(six, 2, 3), ElementsAre(4, 5, 0, 1, 2, 3));
}

TEST(OrderOfRoundTest, WhatIsComparedStaysTogether) {
  const auto kinds = Configurations({{"", 1}, {"", 1}, {"", 2}, {"1gbit", 2}, {"1gbit", 2}});
  EXPECT_THAT(OrderOfRound(kinds, 1, 3), ElementsAre(1, 0, 2, 4, 3));
  EXPECT_THAT(OrderOfRound({}, 1, 3), ElementsAre());
}

TEST(OrderOfRoundTest, OverAsManyRoundsAsConfigurationsEachIsInEachPlace) {
  const auto three = Configurations({{"", 2}, {"", 2}, {"", 2}});
  for (int place = 0; place < 3; ++place) {
    std::set<size_t> there;
    for (int round = 0; round < 3; ++round) there.insert(OrderOfRound(three, round, 3)[place]);
    EXPECT_EQ(there.size(), 3u);
  }
}

TEST(MergeRoundsTest, FiguresAreMediansOverRoundsAndTheRestIsOfTheRoundInTheMiddle) {
  const absl::StatusOr<proto::Run> run = MergeRounds({Round(90), Round(120), Round(100)});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->samples_per_s(), 100);
  EXPECT_EQ(run->samples_per_s_low(), 90);
  EXPECT_EQ(run->samples_per_s_high(), 120);
  EXPECT_EQ(run->step_ms_p50(), 100);
  EXPECT_EQ(run->step_ms_low(), 1e4 / 120);
  EXPECT_EQ(run->step_ms_high(), 1e4 / 90);
  EXPECT_EQ(run->cpu_ms_per_step(), 100);
  EXPECT_THAT(run->round_samples_per_s(), ElementsAre(90, 120, 100));
  EXPECT_THAT(run->round_params_sha256(), ElementsAre("aa", "aa", "aa"));
}

TEST(MergeRoundsTest, AnInvalidRoundMakesTheRunInvalidAndIsCounted) {
  proto::Run busy = Round(50);
  busy.set_invalid("too busy");
  EXPECT_EQ(MergeRounds({Round(90), busy, Round(100)})->invalid(),
            "in 1 of 3 rounds, such as: too busy");
  EXPECT_EQ(MergeRounds({busy})->invalid(), "too busy");
  EXPECT_EQ(MergeRounds({Round(90)})->invalid(), "");
}

TEST(MergeRoundsTest, StalenessIsThatOfAllRounds) {
  proto::Run one = Round(90);
  one.add_staleness_histogram(3);
  proto::Run other = Round(100);
  other.add_staleness_histogram(1);
  other.add_staleness_histogram(2);
  other.set_max_staleness(1);
  const absl::StatusOr<proto::Run> run = MergeRounds({one, other});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(run->staleness_histogram(), ElementsAre(4, 2));
  EXPECT_EQ(run->max_staleness(), 1);
}

TEST(MergeRoundsTest, RoundsOfSeveralConfigurationsAreRefused) {
  proto::Run other = Round(1);
  other.set_topology("ps");
  const absl::Status status = MergeRounds({Round(1), other}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("expected rounds of one configuration, found "));
  EXPECT_EQ(MergeRounds({}).status().code(), absl::StatusCode::kDataLoss);
}

// A machine that drifts tells nothing unless rounds are compared with themselves.
TEST(RatiosOverRoundsTest, RoundsAreComparedWithThemselves) {
  const proto::Run ring = *MergeRounds({Round(100), Round(50), Round(200)});
  const proto::Run faster = *MergeRounds({Round(110), Round(55), Round(220)});
  EXPECT_THAT(RatiosOverRounds(faster, ring), Each(DoubleNear(1.1, 1e-9)));
  EXPECT_THAT(RatiosOverRounds(ring, faster), SizeIs(3));
}

TEST(RatiosOverRoundsTest, UnequalRoundsHaveNoRatios) {
  const proto::Run one = *MergeRounds({Round(100)});
  EXPECT_THAT(RatiosOverRounds(*MergeRounds({Round(200)}), one), ElementsAre(2));
  EXPECT_THAT(RatiosOverRounds(*MergeRounds({Round(1), Round(2)}), one), IsEmpty());
}

ComparisonPart Part() {
  ComparisonPart part;
  part.options.rounds = 2;
  part.options.steps = 9;
  part.options.threads = 1;
  Configuration ring;
  ring.job.spec.topology = Topology::kRing;
  ring.job.workers = 4;
  ring.batch_size = 10;
  part.configurations = {ring};
  return part;
}

TEST(RunPartsTest, AJobIsExpectedToTakeWhatIsPredictedOrElseItsSamplesInTurns) {
  // 1.5 s, and ten steps of ten samples in two turns.
  EXPECT_THAT(ExpectedSeconds({Part()}, {}, /*cores=*/2), ElementsAre(DoubleEq(2), DoubleEq(2)));
  proto::RunRecords records;
  proto::Run& predicted = *records.add_predictions();
  predicted.set_topology("ring");
  predicted.set_workers(4);
  predicted.set_step_ms_p50(100);
  EXPECT_THAT(ExpectedSeconds({Part()}, records.predictions(), /*cores=*/2),
              ElementsAre(DoubleEq(2.5), DoubleEq(2.5)));
}

TEST(RunPartsTest, AJobThatFailsIsSaidOnceAndLeftOutOfFurtherRounds) {
  JobPrograms programs;
  programs.rank_binary = "/bin/false";
  std::string shown;
  ProgressOptions progress;
  progress.weights = {1, 1};
  progress.clock = MonotonicTime::Now;
  progress.write = [&shown](absl::string_view text) { shown.append(text.data(), text.size()); };
  std::vector<std::string> errors;
  proto::RunRecords records;
  const int exit_code = RunParts(
      {Part()}, programs, {}, progress, [&errors](absl::string_view e) { errors.emplace_back(e); },
      &records);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(errors, ElementsAre(HasSubstr("ring, 4 workers: ")));
  EXPECT_THAT(shown, HasSubstr("left out, since it failed"));
  EXPECT_EQ(records.runs_size(), 0);
}

}  // namespace
}  // namespace gradsync
