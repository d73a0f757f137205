// Runs the program itself, with real processes. Of the peers those that this build has always; one
// test takes those that tools/setup --peers has installed, if it has.

#include <pwd.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "benchmarks/records/proto_json.h"
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

TEST(PeersTest, OursAndOthersAreMeasuredInRoundsVerifiedAndCompared) {
  const std::string json = testing::TempDir() + "/peers.json";
  TestProgram program(
      {"benchmarks/peers", "--ranks=2", "--bytes=300004", "--rounds=2", "--iterations=2",
       "--warmup=1", "--json=" + json,
       "--contestants=ring/tcp,ps/tcp,gloo,mpich,mpich_window,tensorflow,memcpy,tcp_stream,"
       "grpc_stream/ring",
       "--peers_folder=/nowhere"});
  EXPECT_TRUE(program.Finish(absl::Seconds(200)).ok()) << absl::StrJoin(program.err(), "\n");
  const std::string out = absl::StrJoin(program.out(), "\n");
  EXPECT_THAT(out, HasSubstr("2 ranks, 300004, 2 rounds of 2"));
  EXPECT_THAT(out, HasSubstr("best peer"));
  for (const char* absent : {"mpich", "mpich_window", "tensorflow"}) {
    EXPECT_THAT(out, HasSubstr(absl::StrCat("\n", absent,
                                            ": not installed; tools/setup --peers installs it\n")));
  }

  const proto::RunRecords records = ReadRecords(json);
  ASSERT_EQ(records.runs_size(), 9);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.library() + " " + run.topology() + " " + run.link());
    if (absl::StartsWith(run.library(), "mpich") || run.library() == "tensorflow") {
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
    EXPECT_EQ(run.link(), "tcp");
    // Gloo is the only library here, so it is the best peer.
    ASSERT_EQ(run.peer_ratios_size(), 5);
    EXPECT_EQ(run.peer_ratios(0).peer(), "gloo");
    EXPECT_EQ(run.peer_ratios(4).peer(), "best peer");
    EXPECT_EQ(run.peer_ratios(0).p50(), run.peer_ratio());
    EXPECT_GT(run.peer_ratio(), 0);
  }
}

// Where tools/setup --peers installs for whoever runs this test; Bazel sets another HOME.
std::string InstalledPeers() {
  const passwd* const user = getpwuid(getuid());
  return user == nullptr ? "/nowhere" : absl::StrCat(user->pw_dir, "/.cache/gradsync/peers");
}

// One setting of each would do, but which one is fastest is part of what is tested.
TEST(PeersTest, ThoseThatAreInstalledAreVerifiedAndCompared) {
  const std::string folder = InstalledPeers();
  if (!std::filesystem::exists(folder + "/tensorflow/installed") ||
      !std::filesystem::exists(folder + "/programs/impi_window")) {
    GTEST_SKIP() << "tools/setup --peers has not been run";
  }
  const std::string json = testing::TempDir() + "/installed.json";
  TestProgram program({"benchmarks/peers", "--ranks=3", "--bytes=4,40004", "--rounds=2",
                       "--iterations=2", "--warmup=1", "--json=" + json, "--timeout=60s",
                       "--contestants=ps/grpc,impi,mpich_window,openmpi_window,impi_window,"
                       "tensorflow",
                       "--peers_folder=" + folder});
  EXPECT_TRUE(program.Finish(absl::Seconds(250)).ok()) << absl::StrJoin(program.err(), "\n");
  const std::string out = absl::StrJoin(program.out(), "\n");
  EXPECT_THAT(out, HasSubstr("tensorflow: its parameter servers: each worker "));
  EXPECT_THAT(out,
              HasSubstr("time over that of the first row, in brackets smallest to largest of 2 "
                        "rounds"));
  const proto::RunRecords records = ReadRecords(json);
  ASSERT_EQ(records.runs_size(), 2 * 6);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.library());
    EXPECT_EQ(run.failure(), "");
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.workers(), 3);
    EXPECT_GT(run.time_us_p50(), 0);
    EXPECT_EQ(run.round_us_size(), 2);
    EXPECT_EQ(run.servers(), run.topology() == "ps" ? 3 : 0);
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

// Flags are read in order, so that all before the first mistake were understood.
TEST(PeersTest, OtherSpellingsOfFlagsAreUnderstood) {
  TestProgram all({"benchmarks/peers", "--ranks=2", "--rank=2", "--worker=2", "--sizes=4KiB",
                   "--contestant=gloo", "--topologies=ring", "--links=shm", "--models=resnet18",
                   "--batch=8", "-n=1", "-w=1", "--no_such_flag"});
  EXPECT_EQ(all.Finish().code, 2);
  EXPECT_THAT(all.err(), testing::ElementsAre(HasSubstr("--no_such_flag")));
}

TEST(PeersTest, WrongFlagsAreOneLineAndExitCodeTwo) {
  for (const char* flag : {"--ranks=1", "--bytes=3", "--bytes=lots", "--rounds=-1",
                           "--contestants=nccl", "--json=/nowhere/x", "--no_such_flag", "stray",
                           "--iterations=-1", "--warmup=-2", "--timeout=0s"}) {
    TestProgram program({"benchmarks/peers", flag});
    EXPECT_EQ(program.Finish().code, 2) << flag;
    EXPECT_THAT(program.err(), testing::SizeIs(1)) << flag;
    EXPECT_THAT(program.out(), testing::IsEmpty()) << flag;
  }
}

}  // namespace
}  // namespace gradsync
