// Runs the program itself, with real ranks and servers.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "allreduce/open_nccl.h"
#include "benchmarks/records/proto_json.h"
#include "core/gpu/open_gpu.h"
#include "core/plan/cost_model.h"
#include "core/plan/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::vector<std::string> errors;
};

Outcome RunBench(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "benchmarks/sync_bench");
  TestProgram program(flags);
  const int exit_code = program.Finish(absl::Seconds(200)).code;
  return {exit_code, absl::StrJoin(program.out(), "\n"), program.err()};
}

TEST(SyncBenchTest, EveryTopologyIsMeasuredVerifiedAndRecorded) {
  const std::string json = testing::TempDir() + "/sync.json";
  const Outcome outcome = RunBench({"--topologies=ring,ps", "--rank=2", "--servers=1,2",
                                    "--update=worker,owner", "--sizes=300001", "-n", "2", "-w", "1",
                                    "--bandwidth=1gbit", "--noemulate", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.errors, testing::IsEmpty());
  EXPECT_THAT(outcome.out, HasSubstr("cores"));
  EXPECT_THAT(outcome.out, HasSubstr("#wrong"));

  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.runs_size(), 6);
  EXPECT_THAT(records.command(), HasSubstr("--bandwidth=1gbit"));
  EXPECT_GT(records.machine().cores(), 0);
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.workers(), 2);
    EXPECT_GT(run.time_us_p50(), 0);
    EXPECT_GT(run.model_us(), 0);
    // What `auto` takes on one host. There a rank of the ring stores its half into the other's
    // memory, and the servers store everything into that of both workers; nothing else is sent.
    EXPECT_EQ(run.link(), "shm");
    EXPECT_EQ(run.wire_tx_bytes_total(), (run.servers() == 0 ? 1 : 2) * run.bytes());
    EXPECT_EQ(run.busbw_gb_per_s().kind_case() == google::protobuf::Value::kNumberValue,
              run.topology() == "ring");
  }
}

TEST(SyncBenchTest, BothLinksBetweenHostsSendTheSameBytes) {
  const std::string json = testing::TempDir() + "/links.json";
  const Outcome outcome =
      RunBench({"--link=grpc,tcp", "--topology=ring,ps", "--ranks=2", "--servers=1",
                "--bytes=300004", "-n", "2", "-w", "1", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  std::map<std::string, std::map<std::string, double>> sent;  // by link and topology
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_GT(run.connections(), 0);
    sent[run.link()][run.topology()] = run.wire_tx_bytes_total();
  }
  EXPECT_EQ(sent["tcp"].size(), 2u);
  EXPECT_EQ(sent["tcp"], sent["grpc"]);
}

// Each rank found enough memory for itself, and the kernel killed processes of the host.
TEST(SyncBenchTest, WhatAllRanksTogetherHaveNoMemoryForIsRefusedBeforeTheFirstRow) {
  const int64_t quarter = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4 >> 20;
  for (const std::vector<std::string>& sizes :
       {std::vector<std::string>{"-b", "1M", "-e", absl::StrCat(quarter, "M"), "-f",
                                 absl::StrCat(quarter)},
        std::vector<std::string>{absl::StrCat("--bytes=", quarter, "MiB")}}) {
    std::vector<std::string> flags = {"--topology=ring"};
    flags.insert(flags.end(), sizes.begin(), sizes.end());
    const Outcome outcome = RunBench(flags);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.errors, testing::ElementsAre(testing::AllOf(
                                    HasSubstr("sync_bench: ring"), HasSubstr("bytes of memory"),
                                    HasSubstr("which is all that"))));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(SyncBenchTest, FlagsOfNcclTestsLeadToTheRightOnes) {
  for (const auto& [theirs, ours] :
       std::map<std::string, std::string>{{"-g=2", "--workers"},
                                          {"--minbytes=4K", "--min_bytes"},
                                          {"--ngpus=2", "--workers"},
                                          {"--iters=5", "--iterations"},
                                          {"-c=1", "results are checked"},
                                          {"-d=float", "fp32"}}) {
    const Outcome outcome = RunBench({theirs});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.errors, testing::ElementsAre(HasSubstr(ours)));
  }
}

TEST(SyncBenchTest, SizesThatAreRoundedUpAreSaid) {
  const Outcome outcome = RunBench({"--topology=ring", "--bytes=4097,8192", "-n", "1", "-w", "0"});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("# bytes are padded to multiples of 64: 4097 becomes 4"));
}

double Busiest(const proto::Run& run) {
  return std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
}

TEST(SyncBenchTest, HostsOnAnEmulatedNetworkSendWhatTheirPlacementSays) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  const std::string json = testing::TempDir() + "/placed.json";
  const Outcome outcome =
      RunBench({"--bandwidth=400mbit", "--link=auto,gloo", "--ranks=3", "--servers=1",
                "--placement=dedicated,colocated,mixed", "--bytes=3MB", "--chunk_bytes=4KiB", "-n",
                "2", "-w", "1", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.networks_size(), 1);
  EXPECT_EQ(records.networks(0).hosts(), 4);
  EXPECT_GT(records.networks(0).tcp_factor(), 0.5);
  EXPECT_LT(records.networks(0).tcp_factor(), 1);
  // By topology, placement and link, as closed forms have them.
  const std::string link = LinkName(kLinkBetweenHosts);
  const std::map<std::string, double> loads = {{"ring  " + link, RingLoad(3)},
                                               {"ring  gloo", RingLoad(3)},
                                               {"ps dedicated " + link, DedicatedPsLoad(3, 1)},
                                               {"ps colocated " + link, ColocatedPsLoad(3, 1)},
                                               {"ps mixed " + link, MixedPsLoad(3, 1)}};
  std::map<std::string, double> found;
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.bandwidth(), "400mbit");
    EXPECT_GT(run.model_us(), 0);
    if (run.library() == "tcp_stream") continue;
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_GT(run.peer_ratio(), 0);
    EXPECT_EQ(run.simulated_us() > 0, run.link() == link);
    found[absl::StrCat(run.topology(), " ", run.placement(), " ", run.link())] =
        Busiest(run) / run.bytes();
  }
  ASSERT_EQ(found.size(), loads.size());
  EXPECT_EQ(records.runs_size(), 10);
  for (const auto& [name, load] : loads) {
    if (name == "ring  gloo") continue;  // Gloo counts nothing
    EXPECT_NEAR(found[name], load, 0.01 * load) << name;
  }
}

// Beside the second bandwidth stood bare TCP's times of the first.
TEST(SyncBenchTest, BareTcpIsMeasuredAtEachBandwidth) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  const std::string json = testing::TempDir() + "/bandwidths.json";
  const Outcome outcome = RunBench({"--bandwidth=100mbit,400mbit", "--topology=ring", "--bytes=3MB",
                                    "-n", "1", "-w", "1", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.runs_size(), 4);
  ASSERT_EQ(records.networks_size(), 2);
  EXPECT_EQ(records.networks(0).burst_bytes(), DefaultBurstBytes(100e6 / 8));
  EXPECT_EQ(records.networks(1).burst_bytes(), DefaultBurstBytes(400e6 / 8));
  for (int i : {1, 3}) EXPECT_EQ(records.runs(i).library(), "tcp_stream");
  EXPECT_GT(records.runs(1).time_us_p50(), 2 * records.runs(3).time_us_p50());
}

TEST(SyncBenchTest, BadFlagsAreOneLineAndExitCodeTwo) {
  for (const char* flag :
       {"--placement=mixed", "--topology=star", "--bytes=lots", "--ranks=0",
        "--link=carrier_pigeon", "--json=/nowhere/x", "--no_such_flag", "stray"}) {
    const Outcome outcome = RunBench({flag});
    EXPECT_EQ(outcome.exit_code, 2) << flag;
    EXPECT_EQ(outcome.errors.size(), 1u) << flag;
    EXPECT_EQ(outcome.out, "") << flag;
  }
}

// Flags are read in order, so that all before the first mistake were understood.
TEST(SyncBenchTest, OtherSpellingsOfFlagsAreUnderstood) {
  const Outcome all =
      RunBench({"--topologies=ring", "--links=grpc", "--updates=worker", "--ranks=2", "--rank=2",
                "--worker=2", "--servers=1", "--server=1", "--sizes=4KiB", "--compressions=none",
                "--bandwidths=1Gbps", "--placements=dedicated", "-b=4K", "-e=8K", "-f=2", "-n=1",
                "-w=1", "--no_such_flag"});
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_THAT(all.errors, testing::ElementsAre(HasSubstr("--no_such_flag")));
  EXPECT_THAT(RunBench({"--ranks=0"}).errors, testing::ElementsAre(HasSubstr("--workers: ")));
  EXPECT_THAT(RunBench({"--topologies=star"}).errors,
              testing::ElementsAre(HasSubstr("--topology")));
}

// Before anything starts, in the words of a worker.
TEST(SyncBenchTest, WithoutABuildOrAMachineForGpusItSaysSo) {
  if (CheckGpu(0).ok()) GTEST_SKIP() << "there is a GPU";
  const std::string device = absl::IsFailedPrecondition(CheckGpu(0))
                                 ? "--device=cuda: this build has no CUDA: build with "
                                 : "--device=cuda: this machine ";
  const std::string nccl =
      NcclVersion() == 0 ? "--link=nccl: this build has no NCCL: build with " : device;
  for (const auto& [flag, expected] :
       std::map<std::string, std::string>{{"--device=cuda", device}, {"--link=nccl", nccl}}) {
    const Outcome outcome = RunBench({flag});
    EXPECT_EQ(outcome.exit_code, 2) << flag;
    EXPECT_THAT(outcome.errors,
                testing::ElementsAre(testing::StartsWith("sync_bench: " + expected)));
    EXPECT_EQ(outcome.out, "") << flag;
  }
}

TEST(SyncBenchTest, AMeasurementThatFailsIsNamedAndExitCodeOne) {
  const Outcome outcome =
      RunBench({"--topology=ps", "--servers=1", "--bytes=4KiB", "--server_binary=/bin/false"});
  EXPECT_EQ(outcome.exit_code, 1);
  ASSERT_THAT(outcome.errors, testing::SizeIs(2));
  EXPECT_THAT(outcome.errors[0], HasSubstr("ps, servers 1, ranks 2, 4KiB: server 0"));
  EXPECT_THAT(outcome.errors[1], HasSubstr("1 of 1 measurements failed"));
}

}  // namespace
}  // namespace gradsync
