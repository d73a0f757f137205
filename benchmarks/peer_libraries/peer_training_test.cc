#include "benchmarks/peer_libraries/peer_training.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TrainingOutcome Outcome(const std::string& row, std::vector<double> step_ms) {
  TrainingOutcome outcome;
  const bool ours = row.find("gradsync") == 0;
  outcome.run.set_row(row);
  outcome.run.set_library(ours ? "gradsync" : "pytorch_ddp");
  outcome.run.set_topology(ours ? row.substr(9, row.find('/') - 9) : "ring");
  if (row.find('/') != row.npos) outcome.run.set_link(row.substr(row.find('/') + 1));
  outcome.run.set_workers(2);
  outcome.run.set_batch_size(32);
  outcome.step_ms = std::move(step_ms);
  return outcome;
}

std::string Table(const std::vector<TrainingOutcome>& outcomes) {
  return TrainingTable(outcomes, TrainingRecords(outcomes));
}

// The one row that there was, PyTorch's defaults, was what we were faster than.
TEST(TrainingReportTest, TheRatioIsOverTheBestRowOfPyTorch) {
  const std::vector<TrainingOutcome> outcomes = {
      Outcome("gradsync ring/nccl", {10, 10, 10}), Outcome("gradsync local", {8, 8, 8}),
      Outcome("pytorch ddp", {20, 20, 20}), Outcome("pytorch ddp best", {12, 12, 12}),
      Outcome("pytorch ddp compiled", {13, 11, 13})};
  EXPECT_EQ(BestPeer(outcomes), &outcomes[3]);
  const std::vector<proto::Run> records = TrainingRecords(outcomes);
  EXPECT_DOUBLE_EQ(records[0].peer_ratio(), 1.2);
  ASSERT_EQ(records[0].peer_ratios_size(), 4);
  EXPECT_EQ(records[0].peer_ratios(0).peer(), "pytorch ddp");
  EXPECT_DOUBLE_EQ(records[0].peer_ratios(0).p50(), 2);
  EXPECT_EQ(records[0].peer_ratios(3).peer(), "best peer");
  EXPECT_DOUBLE_EQ(records[0].peer_ratios(3).p50(), 1.2);
  EXPECT_DOUBLE_EQ(records[2].peer_ratio(), 2);  // its time over that of the first of ours
  EXPECT_DOUBLE_EQ(records[0].step_ms_p50(), 10);
  EXPECT_DOUBLE_EQ(records[0].samples_per_s(), 6400);
  const std::string table = Table(outcomes);
  EXPECT_THAT(table,
              AllOf(HasSubstr("pytorch ddp best *"),
                    HasSubstr("samples/s of gradsync ring/nccl over pytorch ddp best: 1.200 (1.200 "
                              "to 1.200: smallest to largest of 3 rounds, which hold the true "
                              "median 75 times in 100), PyTorch's best row\n"),
                    HasSubstr("step of gradsync ring/nccl over gradsync local: 1.250"),
                    HasSubstr("1.300 (1.100-1.300)")));
}

TEST(TrainingReportTest, ARowThatFailedSaysWhyAndIsNotTheBest) {
  std::vector<TrainingOutcome> outcomes = {Outcome("gradsync ring/nccl", {10, 10}),
                                           Outcome("pytorch ddp best", {12, 12}),
                                           Outcome("pytorch ddp graphs", {1})};
  outcomes[2].run.set_failure("cannot run: capture failed");
  EXPECT_EQ(BestPeer(outcomes), &outcomes[1]);
  EXPECT_EQ(TrainingRecords(outcomes)[0].peer_ratios_size(), 2);
  EXPECT_THAT(Table(outcomes), HasSubstr("pytorch ddp graphs: cannot run: capture failed\n"));
  outcomes[1].run.set_failure("cannot run: no torch");
  EXPECT_EQ(BestPeer(outcomes), nullptr);
  EXPECT_EQ(TrainingRecords(outcomes)[0].peer_ratio(), 0);
  EXPECT_THAT(Table(outcomes), Not(HasSubstr("best row")));
}

TEST(TrainingReportTest, ItIsSaidWhetherTopologiesOrTransportsAreCompared) {
  const std::string table =
      Table({Outcome("gradsync ring/nccl", {10}), Outcome("gradsync ring/shm", {20}),
             Outcome("gradsync ps/shm", {30}), Outcome("gradsync local", {8})});
  EXPECT_THAT(
      table,
      AllOf(HasSubstr("ring/nccl over gradsync ps/shm: 3.000 (3.000 to 3.000: one round), a "
                      "comparison of transports"),
            HasSubstr("gradsync ring/shm over gradsync ps/shm: 1.500 (1.500 to 1.500: one round), "
                      "a comparison of topologies\n")));
}

TEST(TrainingReportTest, ATestModeIsNamed) {
  std::vector<TrainingOutcome> outcomes = {Outcome("gradsync ring/nccl", {10})};
  outcomes[0].run.set_invalid("test mode");
  EXPECT_THAT(Table(outcomes), HasSubstr("INVALID: gradsync ring/nccl: test mode\n"));
}

}  // namespace
}  // namespace gradsync
