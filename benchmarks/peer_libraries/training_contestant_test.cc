// Contestants that are shell scripts.

#include "benchmarks/peer_libraries/training_contestant.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using testing::AllOf;
using ::testing::ElementsAre;
using testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HasSubstr;
using ::testing::Not;

PeerTrainingOptions Options(bool on_gpu, int ranks) {
  PeerTrainingOptions options;
  options.compute.device = on_gpu ? "cuda" : "cpu";
  options.ranks = ranks;
  options.environment = [](absl::string_view) { return absl::optional<std::string>(); };
  return options;
}

std::vector<std::string> Names(const std::vector<PyTorchRow>& rows) {
  std::vector<std::string> names;
  for (const PyTorchRow& row : rows) names.push_back(row.name);
  return names;
}

std::vector<std::string> Names(const std::vector<OurRow>& rows) {
  std::vector<std::string> names;
  for (const OurRow& row : rows) {
    const std::string link = row.spec.link == Link::kAuto ? "" : LinkName(row.spec.link);
    names.push_back(TopologyName(row.spec.topology) + "/" + link + (row.eager ? " eager" : ""));
  }
  return names;
}

TEST(TrainingContestantTest, RowsAreThoseThatMakeSense) {
  EXPECT_THAT(Names(OurRows(Options(false, 1))), ElementsAre("local/"));
  EXPECT_THAT(Names(PyTorchRows(Options(false, 1))), ElementsAre("pytorch best", "pytorch"));
  EXPECT_THAT(Names(OurRows(Options(false, 2))), ElementsAre("ring/", "local/"));
  EXPECT_THAT(Names(PyTorchRows(Options(false, 2))),
              ElementsAre("pytorch ddp best", "pytorch ddp"));
  EXPECT_THAT(PyTorchRows(Options(false, 2))[0].other_settings, Not(testing::IsEmpty()));
  EXPECT_THAT(PyTorchRows(Options(false, 1))[0].other_settings, testing::IsEmpty());
  EXPECT_THAT(PyTorchRows(Options(true, 2))[0].other_settings, testing::IsEmpty());
  PeerTrainingOptions options = Options(true, 1);
  EXPECT_THAT(Names(OurRows(options)), ElementsAre("ring/nccl", "ring/nccl eager"));
  EXPECT_THAT(Names(OurRows(Options(true, 2))),
              ElementsAre("ring/nccl", "ring/nccl eager", "local/"));
  EXPECT_THAT(Names(PyTorchRows(options)),
              ElementsAre("pytorch ddp best", "pytorch ddp", "pytorch ddp compiled",
                          "pytorch ddp graphs", "pytorch ddp compiled graphs"));
  options.links = {Link::kNccl, Link::kShm};
  options.topologies = {Topology::kRing, Topology::kPs};
  EXPECT_THAT(Names(OurRows(options)),
              ElementsAre("ring/nccl", "ring/shm", "ps/shm", "ring/nccl eager"));
  EXPECT_EQ(PyTorchRows(options).back().name, "pytorch ddp gloo");
  EXPECT_EQ(PyTorchRows(options).back().backend, "gloo");
  options.pytorch = {"compiled"};
  EXPECT_THAT(Names(PyTorchRows(options)), ElementsAre("pytorch ddp compiled"));
  options.pytorch = {"compiled_graphs"};
  EXPECT_THAT(PyTorchRows(options)[0].settings, HasSubstr("graph,compile"));
  options.pytorch = {"compiled"};
  options.compute.cudnn_benchmark = true;
  EXPECT_THAT(PyTorchRows(options)[0].settings, HasSubstr("cudnn_benchmark"));
  options.compute.cudnn_benchmark = false;
  EXPECT_THAT(PyTorchRows(options)[0].settings,
              AllOf(Not(HasSubstr("cudnn_benchmark")), HasSubstr("prefetch,compile")));
}

class PyTorchTest : public testing::Test {
 protected:
  absl::StatusOr<TrainingContestant> Start(PeerTrainingOptions options, const std::string& script) {
    options.python = "/bin/sh";
    options.script = testing::TempDir() + "/script.sh";
    std::ofstream(options.script) << script;
    return TrainingContestant::StartPyTorch(options, {"pytorch ddp", "fused", "auto"});
  }
};

TEST_F(PyTorchTest, WhyItCannotRunIsTheError) {
  const absl::Status status =
      Start(Options(false, 1), "echo cannot run: there is no torch").status();
  EXPECT_EQ(status, absl::UnavailableError("cannot run: there is no torch"));
}

// A capture that hung held up everybody.
TEST_F(PyTorchTest, OneThatIsNeverReadyIsGivenUp) {
  PeerTrainingOptions options = Options(false, 1);
  options.peer_timeout = absl::ZeroDuration();
  EXPECT_EQ(Start(options, "exec cat").status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PyTorchTest, ATurnLastsFromTheFirstBeginToTheLastEnd) {
  auto contestant = Start(Options(false, 2), R"(
    case "$*" in
      *--rank=0*) echo store 127.0.0.1:1; begin=1000; end=3000;;
      *--master=127.0.0.1:1*) begin=2000; end=5000;;
    esac
    echo "ready torch 9|cpu|||foreach bucket_view"
    while read steps; do echo $begin $end; done)");
  ASSERT_TRUE(contestant.ok()) << contestant.status();
  EXPECT_EQ(contestant->run().settings(), "torch 9: foreach bucket_view");
  EXPECT_EQ(contestant->run().link(), "gloo");
  EXPECT_DOUBLE_EQ(*contestant->TakeTurn(2), 2);  // ms per step
}

TEST_F(PyTorchTest, WhatItSaysInsteadOfTimesIsTheError) {
  auto contestant = Start(Options(false, 1), R"(
    echo "ready torch 9|cpu|||"
    read steps; echo cannot run: out of memory)");
  ASSERT_TRUE(contestant.ok()) << contestant.status();
  EXPECT_EQ(contestant->TakeTurn(2).status(), absl::UnavailableError("cannot run: out of memory"));
}

TEST_F(PyTorchTest, WhatLibrariesPrintIsNoAnswer) {
  auto contestant = Start(Options(false, 2), R"(
    echo "NCCL version 2.28.9"
    case "$*" in *--rank=0*) echo store 127.0.0.1:1;; esac
    echo "host:1:1 [0] NCCL INFO"
    echo "ready torch 9|cpu|||"
    read steps; echo "a graph was compiled"; echo 1000 3000; read end)");
  ASSERT_TRUE(contestant.ok()) << contestant.status();
  EXPECT_DOUBLE_EQ(*contestant->TakeTurn(2), 1);
}

TEST_F(PyTorchTest, RanksThatShareAGpuAreHostsOfTheirOwnToNccl) {
  PeerTrainingOptions options = Options(true, 2);
  options.ranks_per_gpu = 2;
  const char kScript[] = R"(
    case "$*" in *--rank=0*) echo store 127.0.0.1:1;; esac
    case "$*" in *--local_rank=0*) gpu=0;; *) gpu=other;; esac
    echo "ready $NCCL_HOSTID on $gpu|cuda:0 (X)|2.28.9|NCCL_ALGO=$NCCL_ALGO|cudnn_benchmark"
    while read steps; do :; done)";
  auto contestant = Start(options, kScript);
  ASSERT_TRUE(contestant.ok()) << contestant.status();
  const proto::Run& run = contestant->run();
  EXPECT_EQ(run.settings(), "gradsync-test-1 on 0: cudnn_benchmark");
  EXPECT_TRUE(run.cudnn_benchmark());
  EXPECT_EQ(run.nccl_asked(), "NCCL_ALGO=Ring");
  EXPECT_THAT(run.invalid(), HasSubstr("test mode"));
  options.ranks_per_gpu = 1;
  contestant = Start(options, kScript);
  ASSERT_TRUE(contestant.ok()) << contestant.status();
  EXPECT_EQ(contestant->run().settings(), " on other: cudnn_benchmark");
  EXPECT_EQ(contestant->run().invalid(), "");
}

// The setting says how long a step takes, in milliseconds; "broken" does not start, "tired" fails
// at its turn.
constexpr char kScript[] = R"(
  for argument; do
    case "$argument" in --settings=*) setting=${argument#*=};; esac
  done
  if [ "$setting" = broken ]; then echo cannot run: it is broken; exit; fi
  echo "ready torch 9|cpu|||$setting"
  while read steps; do
    if [ "$setting" = tired ]; then echo cannot run: it is tired; exit; fi
    echo 0 $((setting * 1000 * steps))
  done)";

struct Tried {
  absl::Status status;
  std::string settings;  // of the winner
  std::vector<std::string> lines;
};

Tried Try(const std::string& first, const std::vector<std::string>& others) {
  PeerTrainingOptions options;
  options.ranks = 1;
  options.environment = [](absl::string_view) { return absl::optional<std::string>(); };
  options.python = "/bin/sh";
  options.script = testing::TempDir() + "/script.sh";
  std::ofstream(options.script) << kScript;
  Tried tried;
  const auto winner =
      StartFastest(options, {"pytorch", first, "auto", others},
                   [&tried](absl::string_view line) { tried.lines.emplace_back(line); });
  tried.status = winner.status();
  if (winner.ok()) tried.settings = winner->run().settings();
  return tried;
}

TEST(FastestSettingTest, TheFastestIsKeptAndEveryComparisonIsTold) {
  const Tried tried = Try("30", {"20", "25"});
  EXPECT_EQ(tried.settings, "torch 9: 20 (fastest of 3)");
  EXPECT_THAT(tried.lines,
              ElementsAre("trying torch 9: 20: 20.0 ms, beside 30.0 ms with torch 9: 30",
                          "trying torch 9: 25: 25.0 ms, beside 20.0 ms with torch 9: 20"));
}

TEST(FastestSettingTest, OneSettingIsTakenAsItIs) {
  const Tried tried = Try("30", {});
  EXPECT_EQ(tried.settings, "torch 9: 30");
  EXPECT_THAT(tried.lines, testing::IsEmpty());
}

TEST(FastestSettingTest, SettingsThatCannotRunAreOut) {
  EXPECT_EQ(Try("broken", {"20"}).settings, "torch 9: 20 (fastest of 2)");
  EXPECT_EQ(Try("20", {"broken"}).settings, "torch 9: 20 (fastest of 2)");
  EXPECT_EQ(Try("tired", {"20"}).settings, "torch 9: 20 (fastest of 2)");
  const Tried tried = Try("20", {"tired"});
  EXPECT_EQ(tried.settings, "torch 9: 20 (fastest of 2)");
  EXPECT_THAT(tried.lines, ElementsAre(AllOf(HasSubstr("tired"), HasSubstr("it is tired"))));
}

TEST(FastestSettingTest, WhenNoneRunsTheErrorIsThatOfTheFirst) {
  EXPECT_EQ(Try("broken", {"broken"}).status, absl::UnavailableError("cannot run: it is broken"));
}

}  // namespace
}  // namespace gradsync
