// Runs peers --train itself, with real processes.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "benchmarks/records/proto_json.h"
#include "core/gpu/open_gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

proto::RunRecords ReadRecords(const std::string& path) {
  proto::RunRecords records;
  EXPECT_EQ(ReadJson(path, &records), absl::OkStatus());
  return records;
}

// A Python that says with which arguments it was started, as the reason why it cannot run.
std::string EchoingPython() {
  const std::string path = testing::TempDir() + "/echoing_python";
  std::ofstream(path) << "#!/bin/sh\necho cannot run: $*\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// Two ranks had two threads each on two cores, and steps took up to 20 times as long.
// And a row's servers were what was asked for, whatever ran.
TEST(PeersTrainTest, RanksShareTheCoresWhenNobodySaysHowManyThreadsTheyHaveAndSayWhoServes) {
  const std::string json = testing::TempDir() + "/threads.json";
  TestProgram program({"benchmarks/peers", "--train", "--ranks=2", "--topologies=ring,ps",
                       "--batch_size=2", "--rounds=1", "--steps_per_round=1",
                       "--python=" + EchoingPython(), "--json=" + json});
  EXPECT_TRUE(program.Finish(absl::Seconds(200)).ok()) << absl::StrJoin(program.err(), "\n");
  const proto::RunRecords records = ReadRecords(json);
  const int expected = std::max(1, static_cast<int>(records.machine().cores()) / 2);
  ASSERT_EQ(records.runs_size(), 5);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.row());
    EXPECT_EQ(run.threads(), expected);
    EXPECT_EQ(run.servers(), run.topology() == "ps" ? 2 : 0);
    EXPECT_EQ(run.placement(), run.topology() == "ps" ? "colocated" : "");
    if (run.library() == "gradsync") continue;
    EXPECT_THAT(run.failure(), HasSubstr(absl::StrCat("--threads=", expected, " ")));
  }
}

// DDP was measured in one setting, whether or not it was its best here.
TEST(PeersTrainTest, TheRatioIsOverDdpInTheFastestOfSeveralSettingsAndTheDefaultStandsBeside) {
  if (!std::filesystem::exists("/usr/lib/python3/dist-packages/torchvision")) {
    GTEST_SKIP() << "there is no python3-torchvision; tools/setup --extras installs it";
  }
  const std::string json = testing::TempDir() + "/ddp.json";
  TestProgram program({"benchmarks/peers", "--train", "--ranks=2", "--batch_size=2", "--rounds=1",
                       "--steps_per_round=1", "--json=" + json});
  EXPECT_TRUE(program.Finish(absl::Seconds(280)).ok()) << absl::StrJoin(program.err(), "\n");
  const std::string out = absl::StrJoin(program.out(), "\n");
  EXPECT_THAT(out, HasSubstr("\ntrying torch "));
  const proto::RunRecords records = ReadRecords(json);
  ASSERT_EQ(records.runs_size(), 4);
  const proto::Run& ours = records.runs(0);
  ASSERT_EQ(ours.peer_ratios_size(), 3);
  EXPECT_EQ(ours.peer_ratios(0).peer(), "pytorch ddp best");
  EXPECT_EQ(ours.peer_ratios(1).peer(), "pytorch ddp");
  EXPECT_EQ(ours.peer_ratios(2).peer(), "best peer");
  EXPECT_EQ(ours.peer_ratio(), std::min(ours.peer_ratios(0).p50(), ours.peer_ratios(1).p50()));
  EXPECT_EQ(records.runs(2).failure(), "");
  EXPECT_THAT(records.runs(2).settings(), HasSubstr("no_buffers"));
  EXPECT_THAT(records.runs(2).settings(), HasSubstr("(fastest of 6)"));
  EXPECT_EQ(records.runs(3).failure(), "");
  EXPECT_THAT(records.runs(3).settings(), testing::Not(HasSubstr(":")));
}

TEST(PeersTrainTest, WrongFlagsOfTrainingAreOneLineAndExitCodeTwo) {
  for (const char* flag :
       {"--ranks_per_gpu=2", "--ranks_per_gpu=0", "--topologies=mesh", "--links=gloo",
        "--pytorch=fast", "--loader_threads=-1", "--pixels=7", "--threads=-1"}) {
    TestProgram program({"benchmarks/peers", "--train", flag});
    EXPECT_EQ(program.Finish().code, 2) << flag;
    EXPECT_THAT(program.err(), testing::SizeIs(1)) << flag;
    EXPECT_THAT(program.out(), testing::IsEmpty()) << flag;
  }
}

// Before anything starts, in the words of a worker.
TEST(PeersTrainTest, TrainingOnAGpuThatIsNotThereIsRefused) {
  if (CheckGpu(0).ok()) GTEST_SKIP() << "there is a GPU";
  TestProgram program({"benchmarks/peers", "--train", "--device=cuda"});
  EXPECT_EQ(program.Finish().code, 2);
  EXPECT_THAT(program.err(),
              testing::ElementsAre(testing::StartsWith("peers: --device=cuda: this ")));
  EXPECT_THAT(program.out(), testing::IsEmpty());
}

}  // namespace
}  // namespace gradsync
