// Runs the program itself, with real processes. Of the peers those that this build has always: what
// tools/setup --peers installs is looked for in a folder where it is not.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "benchmarks/records/proto_json.h"
#include "gmock/gmock.h"
#include "gpu/open_gpu.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

proto::RunRecords ReadRecords(const std::string& path) {
  std::ifstream file(path);
  proto::RunRecords records;
  EXPECT_TRUE(
      ParseJson(std::string(std::istreambuf_iterator<char>(file), {}), path, &records).ok());
  return records;
}

TEST(PeersTest, OursAndOthersAreMeasuredInRoundsVerifiedAndCompared) {
  const std::string json = testing::TempDir() + "/peers.json";
  TestProgram program(
      {"benchmarks/peers", "--ranks=2", "--bytes=300004", "--rounds=2", "--iterations=2",
       "--warmup=1", "--json=" + json,
       "--contestants=ring/shm,ps/grpc,gloo,mpich,memcpy,tcp_stream,grpc_stream/ring",
       "--peers_folder=/nowhere"});
  EXPECT_TRUE(program.Finish(absl::Seconds(200)).ok()) << absl::StrJoin(program.err(), "\n");
  const std::string out = absl::StrJoin(program.out(), "\n");
  EXPECT_THAT(out, HasSubstr("2 ranks, 300004, 2 rounds of 2"));
  EXPECT_THAT(out, HasSubstr("best peer"));
  EXPECT_THAT(out, HasSubstr("mpich: not installed; tools/setup --peers installs it"));

  const proto::RunRecords records = ReadRecords(json);
  ASSERT_EQ(records.runs_size(), 7);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.library() + " " + run.topology() + " " + run.link());
    if (run.library() == "mpich") {
      EXPECT_THAT(run.failure(), HasSubstr("tools/setup --peers"));
      continue;
    }
    EXPECT_EQ(run.failure(), "");
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_GT(run.time_us_p50(), 0);
    EXPECT_LE(run.time_us_p10(), run.time_us_p90());
    EXPECT_EQ(run.round_us_size(), 2);
    if (run.library() == "tcp_stream" || run.library() == "grpc_stream") {
      const int n = run.workers();
      const double sent = 2 * (n - 1) * 300004 / n;
      EXPECT_EQ(run.wire_tx_bytes_max_node(), sent);
    }
    if (run.library() != "gradsync") continue;
    // Gloo is the only library here, so it is the best peer.
    ASSERT_EQ(run.peer_ratios_size(), 5);
    EXPECT_EQ(run.peer_ratios(0).peer(), "gloo");
    EXPECT_EQ(run.peer_ratios(4).peer(), "best peer");
    EXPECT_EQ(run.peer_ratios(0).p50(), run.peer_ratio());
    EXPECT_GT(run.peer_ratio(), 0);
  }
}

// Some of Gloo's algorithms are wrong at three ranks; those that are chosen must not be.
TEST(PeersTest, RanksThatAreNoPowerOfTwoAreRightToo) {
  const std::string json = testing::TempDir() + "/three.json";
  TestProgram program({"benchmarks/peers", "--rank=3", "--sizes=40004,4", "--rounds=1", "-n", "1",
                       "-w", "1", "--json=" + json,
                       "--contestants=ring/shm,gloo,memcpy,tcp_stream"});
  EXPECT_TRUE(program.Finish(absl::Seconds(100)).ok()) << absl::StrJoin(program.err(), "\n");
  const proto::RunRecords records = ReadRecords(json);
  ASSERT_EQ(records.runs_size(), 2 * 4);
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.failure(), "");
    EXPECT_EQ(run.wrong(), 0) << run.library();
    EXPECT_EQ(run.workers(), 3);
  }
}

TEST(PeersTest, WrongFlagsAreOneLineAndExitCodeTwo) {
  for (const char* flag :
       {"--ranks=1", "--bytes=3", "--bytes=lots", "--rounds=-1", "--contestants=nccl",
        "--json=/nowhere/x", "--no_such_flag", "stray", "--iterations=0", "--timeout=0s"}) {
    TestProgram program({"benchmarks/peers", flag});
    EXPECT_EQ(program.Finish().shell_code(), 2) << flag;
    EXPECT_THAT(program.err(), testing::SizeIs(1)) << flag;
    EXPECT_THAT(program.out(), testing::IsEmpty()) << flag;
  }
}

TEST(PeersTest, WrongFlagsOfTrainingAreOneLineAndExitCodeTwo) {
  for (const char* flag :
       {"--ranks_per_gpu=2", "--ranks_per_gpu=0", "--topologies=mesh", "--links=gloo",
        "--pytorch=fast", "--loader_threads=-1", "--pixels=7", "--threads=-1"}) {
    TestProgram program({"benchmarks/peers", "--train", flag});
    EXPECT_EQ(program.Finish().shell_code(), 2) << flag;
    EXPECT_THAT(program.err(), testing::SizeIs(1)) << flag;
    EXPECT_THAT(program.out(), testing::IsEmpty()) << flag;
  }
}

// A Python that says with which arguments it was started, as the reason why it cannot run.
std::string EchoingPython() {
  const std::string path = testing::TempDir() + "/echoing_python";
  std::ofstream(path) << "#!/bin/sh\necho cannot run: $*\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// Two ranks had two threads each on two cores, and steps took up to 20 times as long.
TEST(PeersTest, RanksShareTheCoresWhenNobodySaysHowManyThreadsTheyHave) {
  const std::string json = testing::TempDir() + "/threads.json";
  TestProgram program({"benchmarks/peers", "--train", "--ranks=2", "--batch_size=2", "--rounds=1",
                       "--steps_per_round=1", "--python=" + EchoingPython(), "--json=" + json});
  EXPECT_TRUE(program.Finish(absl::Seconds(200)).ok()) << absl::StrJoin(program.err(), "\n");
  const proto::RunRecords records = ReadRecords(json);
  const int expected = std::max(1, static_cast<int>(records.machine().cores()) / 2);
  ASSERT_EQ(records.runs_size(), 4);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.row());
    EXPECT_EQ(run.threads(), expected);
    if (run.library() == "gradsync") continue;
    EXPECT_THAT(run.failure(), HasSubstr(absl::StrCat("--threads=", expected, " ")));
  }
}

// Before anything starts, in the words of a worker.
TEST(PeersTest, TrainingOnAGpuThatIsNotThereIsRefused) {
  if (CheckGpu(0).ok()) GTEST_SKIP() << "there is a GPU";
  TestProgram program({"benchmarks/peers", "--train", "--device=cuda"});
  EXPECT_EQ(program.Finish().shell_code(), 2);
  EXPECT_THAT(program.err(),
              testing::ElementsAre(testing::StartsWith("peers: --device=cuda: this ")));
  EXPECT_THAT(program.out(), testing::IsEmpty());
}

}  // namespace
}  // namespace gradsync
