// Runs the program itself, with real workers and servers.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "allreduce/open_nccl.h"
#include "benchmarks/records/proto_json.h"
#include "core/gpu/open_gpu.h"
#include "core/plan/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kCompare[] = "benchmarks/compare";

class CompareTest : public ::testing::Test {
 protected:
  CompareTest() : folder_(::testing::TempDir() + "/compare_test-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    out_ = folder_ + "/new/report";
  }
  ~CompareTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Command(const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {kCompare,           "--model=mlp",    "--steps=4",
                                     "--warmup_steps=1", "--batch_size=8", "--rounds=1",
                                     "--out=" + out_};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return argv;
  }

  std::string ReadJson() {
    std::ifstream file(out_ + "/compare.json");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::string folder_;
  std::string out_;
};

// Stages, under either topology and schedule, beside whole models: one hash.
TEST_F(CompareTest, MeshesAreComparedAndEndWithTheBitsOfDataParallelism) {
  TestProgram compare(Command({"--mesh=data=2;data=2,pipeline=2", "--pipeline_schedule=gpipe,1f1b",
                               "--micro_batches=2", "--servers=2", "--link=grpc"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(
      compare.out(),
      AllOf(Contains("  bits: identical in all 6 runs with 2 replicas of 2 micro-batches"),
            Contains(StartsWith("[6/6] ring over grpc, data=2,pipeline=2, 1f1b, 2 micro-batches, "
                                "4 workers"))));
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.micro_batches(), 2);
    EXPECT_EQ(run.mesh(), run.workers() == 4 ? "data=2,pipeline=2" : "data=2");
    EXPECT_EQ(run.split().empty(), run.workers() == 2);
  }
}

// In a batch script of Slurm's too, which has a SLURM_PROCID and no SLURM_NTASKS.
TEST_F(CompareTest, ReplicasInAProcessAreComparedWithWholeBatches) {
  std::vector<std::string> command = {"/usr/bin/env", "SLURM_PROCID=0", "SLURM_JOB_ID=7"};
  for (const std::string& word :
       Command({"--topology=ring", "--workers=1", "--link=grpc", "--data_parallel=1,2"})) {
    command.push_back(word);
  }
  TestProgram compare(command);
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(
      compare.out(),
      AllOf(
          Contains("  bits: only one run of 2 replicas in each with 1 worker, nothing to compare"),
          Contains(StartsWith("  speed: with 1 worker "))));
}

TEST_F(CompareTest, EveryConfigurationIsMeasuredAndAllEndWithTheSameBits) {
  TestProgram compare(Command({"--workers=1,2", "--servers=2", "--topologies=ps,ring",
                               "--update=worker,owner", "--", "--momentum=0.5"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(compare.out(),
              AllOf(Contains("  bits: identical in all 8 runs with 1 worker"),
                    Contains("  bits: identical in all 8 runs with 2 workers"),
                    Contains(StartsWith("  speed: with 2 workers ")),
                    Contains(StartsWith("[16/16] ring over shm, update at owner, 2 workers")),
                    Contains(absl::StrCat("wrote ", out_, "/compare.json"))));
  // Without the page's Python modules it says how to get it.
  if (!std::filesystem::exists(out_ + "/report.html")) {
    EXPECT_THAT(compare.out(), Contains(StartsWith("no report.html: needs python3-")));
  } else {
    EXPECT_THAT(compare.out(), Contains(absl::StrCat("wrote ", out_, "/report.html")));
  }
  const std::string json = ReadJson();
  EXPECT_THAT(json, HasSubstr("\"busbw_gb_per_s\": null"));
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(json, "compare.json", &records).ok());
  EXPECT_THAT(records.command(), StartsWith("bazel run //benchmarks:compare -- --model=mlp "));
  EXPECT_GE(records.machine().cores(), 1);
  ASSERT_EQ(records.runs_size(), 16);
  std::map<int, std::set<std::string>> hashes;
  std::map<std::string, int> runs;
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.DebugString());
    EXPECT_EQ(run.library(), "gradsync");
    EXPECT_EQ(run.steps(), 3);
    EXPECT_EQ(run.batch_size(), 8);
    EXPECT_EQ(run.model(), "mlp");
    EXPECT_GT(run.step_ms_p50(), 0);
    EXPECT_LE(run.step_ms_p10(), run.step_ms_p90());
    EXPECT_GT(run.samples_per_s(), 0);
    EXPECT_GT(run.scaling_efficiency(), 0);
    EXPECT_GT(run.cpu_ms_per_step(), 0);
    EXPECT_GT(run.first_loss(), 0);
    EXPECT_GT(run.final_loss(), 0);
    EXPECT_THAT(run.params_sha256(), SizeIs(64));
    ++runs[absl::StrCat(run.topology(), " ", run.link())];
    hashes[run.workers()].insert(run.params_sha256());
  }
  EXPECT_THAT(runs, ElementsAre(Pair("ps grpc", 4), Pair("ps shm", 4), Pair("ring grpc", 4),
                                Pair("ring shm", 4)));
  EXPECT_THAT(hashes[1], SizeIs(1));
  EXPECT_THAT(hashes[2], SizeIs(1));
}

// Each configuration ran once, parameter servers first and the ring last, and its medians decided.
TEST_F(CompareTest, ConfigurationsTakeTurnsInRoundsAndTheVerdictIsOfRatiosWithinThem) {
  TestProgram compare(
      Command({"--rounds=2", "--workers=2", "--servers=1", "--links=grpc", "--steps=8"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(
      compare.out(),
      AllOf(Contains(StartsWith("[1/4] ps over grpc, 1 server, 2 workers, round 1 of 2: ")),
            Contains(StartsWith("[2/4] ring over grpc, 2 workers, round 1 of 2: ")),
            Contains(StartsWith("[3/4] ring over grpc, 2 workers, round 2 of 2: ")),
            Contains(StartsWith("[4/4] ps over grpc, 1 server, 2 workers, round 2 of 2: ")),
            Contains("  bits: identical in all 2 runs with 2 workers, 2 rounds each"),
            Contains(AllOf(StartsWith("  speed: with 2 workers "), HasSubstr(" times (")))));
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  ASSERT_EQ(records.runs_size(), 2);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.DebugString());
    EXPECT_EQ(run.steps(), 7);
    ASSERT_EQ(run.round_samples_per_s_size(), 2);
    EXPECT_EQ(run.round_step_ms_p50_size(), 2);
    EXPECT_DOUBLE_EQ(run.samples_per_s(),
                     (run.round_samples_per_s(0) + run.round_samples_per_s(1)) / 2);
    EXPECT_EQ(run.samples_per_s_low(),
              std::min(run.round_samples_per_s(0), run.round_samples_per_s(1)));
    EXPECT_EQ(run.step_ms_high(), std::max(run.round_step_ms_p50(0), run.round_step_ms_p50(1)));
    EXPECT_THAT(run.round_params_sha256(), ElementsAre(run.params_sha256(), run.params_sha256()));
  }
}

TEST_F(CompareTest, WorkersThatDoNotWaitAreAheadOfAStragglerByTheBoundAtMost) {
  TestProgram compare(
      Command({"--topologies=ps,ring", "--links=grpc", "--workers=3", "--servers=2",
               "--update=owner", "--consistency=bsp,ssp:2,asp", "--straggler=2:4", "--steps=16"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  std::map<std::string, proto::Run> runs;
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.DebugString());
    runs[absl::StrCat(run.topology(), " ", run.consistency())] = run;
    EXPECT_EQ(run.straggler(), "2:4");
    EXPECT_EQ(run.steps(), 15);
    EXPECT_GT(run.steps_per_s(), 0);
    EXPECT_EQ(run.curve_size(), 16);
    double steps = 0;
    for (double count : run.staleness_histogram()) steps += count;
    EXPECT_EQ(steps, run.consistency() == "bsp" ? 0 : 3 * 16);
  }
  ASSERT_THAT(runs, SizeIs(4));
  EXPECT_LE(runs["ps ssp:2"].staleness_histogram_size(), 3);
  EXPECT_LE(runs["ps ssp:2"].max_staleness(), 2);
  EXPECT_EQ(runs["ps asp"].max_staleness(), runs["ps asp"].staleness_histogram_size() - 1);
  EXPECT_EQ(runs["ps bsp"].params_sha256(), runs["ring bsp"].params_sha256());
  EXPECT_THAT(compare.out(), Contains(HasSubstr("% of steps that lack")));
}

// M bytes of gradients: a ring of two sends M per rank and step, a worker M to its server, which
// sends M to each of two workers.
TEST_F(CompareTest, WireBytesOfTheBusiestNodeAreTheTopologys) {
  TestProgram compare(
      Command({"--worker=2", "--server=1", "--topologies=ps,ring", "--links=grpc"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(120)).ok()) << absl::StrJoin(compare.err(), "\n");
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  ASSERT_EQ(records.runs_size(), 2);
  const double bytes = records.runs(0).bytes();
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(records.runs(0).topology(), "ps");
  EXPECT_EQ(records.runs(0).wire_tx_bytes_max_node(), 2 * bytes);
  EXPECT_EQ(records.runs(0).wire_tx_bytes_total(), 4 * bytes);
  EXPECT_EQ(records.runs(1).topology(), "ring");
  EXPECT_EQ(records.runs(1).wire_tx_bytes_max_node(), bytes);
  EXPECT_EQ(records.runs(1).wire_tx_bytes_total(), 2 * bytes);
}

TEST_F(CompareTest, AnInterruptStopsTheJob) {
  TestProgram compare(
      Command({"--topologies=local,ring", "--links=grpc", "--workers=1", "--steps=100000000"}));
  compare.AwaitLine("[1/2] local");
  compare.Kill(SIGINT);
  EXPECT_EQ(compare.Finish().code, 130);
  EXPECT_THAT(compare.err(), ElementsAre(HasSubstr("interrupted by signal 2 (SIGINT)")));
}

TEST_F(CompareTest, JobsRunOnHostsOfAnEmulatedNetwork) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  TestProgram compare(Command({"--bandwidth=400mbit,1gbit", "--workers=2", "--servers=1",
                               "--placement=dedicated,colocated,mixed", "--burst=96KiB"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  ASSERT_EQ(records.networks_size(), 2);
  EXPECT_EQ(records.networks(0).hosts(), 3);
  EXPECT_EQ(records.networks(0).burst_bytes(), 96 << 10);
  ASSERT_EQ(records.runs_size(), 8);
  // n = 2, k = 1: a dedicated server is loaded twice; the others' hosts once.
  const std::map<std::string, double> loads = {
      {"dedicated", 2}, {"colocated", 1}, {"mixed", MixedPsLoad(2, 1)}, {"", 1}};
  double cpu_share = 0;
  std::map<std::string, int> at;
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.DebugString());
    EXPECT_EQ(run.link(), "grpc");
    EXPECT_EQ(run.chunk_bytes(), 32 << 10);  // the workers found out that they are on several hosts
    ++at[run.bandwidth()];
    EXPECT_EQ(run.params_sha256(), records.runs(0).params_sha256());
    EXPECT_GE(run.cpu_share(), 0);  // the kernel counts in hundredths of a second
    cpu_share += run.cpu_share();
    const double busiest = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
    const double load = loads.at(run.placement());
    EXPECT_NEAR(busiest / run.bytes(), load, 0.05 * load);
  }
  EXPECT_GT(cpu_share, 0);
  EXPECT_THAT(at, ElementsAre(Pair("1gbit", 4), Pair("400mbit", 4)));
  // Measured beside predicted, and what was predicted alone.
  EXPECT_THAT(compare.out(),
              AllOf(Contains(StartsWith("BANDWIDTH: samples per second of 2 workers")),
                    Contains(ContainsRegex("^  400mbit [|] +[0-9]+[.][0-9] .*[0-9]$")),
                    Contains(ContainsRegex("^   10gbit [|] +-  ")),
                    Contains("  bits: identical in all 8 runs with 2 workers")));
  std::set<std::string> predicted;
  for (const proto::Run& run : records.predictions()) predicted.insert(run.bandwidth());
  EXPECT_THAT(predicted, AllOf(Contains("400mbit"), Contains("25mbit"), Contains("25gbit")));
}

// Flags are read in order, so that all before the first mistake were understood.
TEST_F(CompareTest, OtherSpellingsOfFlagsAreUnderstood) {
  TestProgram compare(
      Command({"--topologies=ring", "--links=grpc", "--updates=worker", "--ranks=2", "--worker=2",
               "--server=1", "--placements=dedicated", "--compressions=none", "--consistencies=bsp",
               "--bandwidths=1Gbps", "--models=mlp", "--batch=8", "--no_such_flag"}));
  EXPECT_EQ(compare.Finish().code, 2);
  EXPECT_THAT(compare.err(), ElementsAre(HasSubstr("--no_such_flag")));
}

TEST_F(CompareTest, BadInputIsOneLineAndExitCode2BeforeAnythingStarts) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--topologies=star"}, "--topology: expected"},
      {{"--toplogies=ps"}, "--toplogies"},
      {{"--momentum=0.5"}, "found one of the workers: put it behind --, as in -- --momentum=..."},
      {{"--learning-rate=1"}, "did you mean --lr?"},
      {{"-np", "2"}, "did you mean --workers?"},
      {{"--servers=0"}, "--servers: expected"},
      {{"--model=resnet19"}, "--model: expected"},
      {{"--precision=fp16"}, "--precision: expected fp32 or bf16 on a CPU"},
      {{"--tf32"}, "--tf32: expected a GPU"},
      {{"--device=gpu"}, "--device: expected cpu, cuda"},
      {{"--topology=ring", "--links=gloo", "--update=owner"}, "--update: expected"},
      {{"--topology=ring", "--update=owner", "--consistency=ssp:2"}, "--consistency: expected"},
      {{"--topology=ps", "--update=worker", "--consistency=asp"}, "--consistency: expected"},
      {{"--bandwidth=fast"}, "--bandwidth: expected"},
      {{"--bandwidth=none,1gbit"}, "--bandwidth: expected auto or none alone"},
      {{"--bandwidth=1gbit,1gbit"}, "--bandwidth: expected each bandwidth once"},
      {{"--burst=96KiB"}, "--burst: expected none without --bandwidth"},
      {{"--bandwidth=none", "--tcp_rmem=4096 65536 65536"}, "--tcp_rmem: expected none without"},
      {{"--congestion_control=cubic"}, "--congestion_control: expected none without"},
      {{"--mesh=data=2", "--workers=1,2"}, "--workers: expected none with --mesh"},
      {{"--rounds=0"}, "--rounds: expected at least 1"},
      {{"--bandwidth=400mbit", "--links=shm"}, "--link: expected"},
      {{"--placement=colocated"}, "--placement: expected"},
      {{"--data=cifar10:/no/such/folder"}, "/no/such/folder"},
      {{"--global_batch_size=7"}, "--global_batch_size: expected"},
      {{"--out=/proc/report"}, "--out: expected"},
      {{"--worker_binary=/no/such/worker"}, "/no/such/worker"},
      {{"--json=/nowhere/x"}, "--json: "},
      {{"--", "--rank=1"}, "--rank: expected"},
  };
  for (const auto& [flags, expected] : cases) {
    SCOPED_TRACE(expected);
    TestProgram compare(Command(flags));
    EXPECT_EQ(compare.Finish().code, 2);
    EXPECT_THAT(compare.err(), ElementsAre(HasSubstr(expected)));
    EXPECT_THAT(compare.out(), ElementsAre());
  }
}

// Before anything starts, in the words of the workers.
TEST_F(CompareTest, WithoutABuildOrAMachineForGpusItSaysSo) {
  const std::string device = absl::IsFailedPrecondition(CheckGpu(0))
                                 ? "--device=cuda: this build has no CUDA: build with "
                                 : "--device=cuda: this machine ";
  const std::string nccl =
      NcclVersion() == 0 ? "--link=nccl: this build has no NCCL: build with " : device;
  if (CheckGpu(0).ok()) GTEST_SKIP() << "there is a GPU";
  for (const auto& [flag, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--device=cuda", device}, {"--links=grpc,nccl", nccl}}) {
    TestProgram compare(Command({flag}));
    EXPECT_EQ(compare.Finish().code, 2);
    EXPECT_THAT(compare.err(), ElementsAre(StartsWith("compare: " + expected)));
    EXPECT_THAT(compare.out(), ElementsAre());
  }
}

// What the records say, workers have said (RunTrainingJob()).
TEST_F(CompareTest, OwnersThatKeepMoreEndWithTheSameBits) {
  TestProgram compare(Command(
      {"--topology=ring,ps", "--link=grpc", "--zero=0,1,2,3", "--workers=2", "--servers=1"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(compare.out(),
              AllOf(Contains("  bits: identical in all 8 runs with 2 workers"),
                    Contains(HasSubstr("ring over grpc, update at owner, zero=3, 2 workers"))));
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  std::map<int, int> runs;
  for (const proto::Run& run : records.runs()) ++runs[run.zero()];
  EXPECT_THAT(runs, ElementsAre(Pair(0, 2), Pair(1, 2), Pair(2, 2), Pair(3, 2)));
}

TEST_F(CompareTest, PrecisionAndMemoryFormatReachTheWorkersAndTheRecords) {
  TestProgram compare(Command({"--workers=2", "--servers=1", "--links=shm", "--device=auto",
                               "--precision=bf16", "--channels_last"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(compare.err(), "\n");
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  ASSERT_EQ(records.runs_size(), 2);
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.precision(), "bf16");
    EXPECT_TRUE(run.channels_last());
    EXPECT_NE(run.device(), "");
    EXPECT_EQ(run.nccl_chosen(), "");
  }
}

TEST_F(CompareTest, WorkersThatRefuseTheirFlagsEndTheSweepWithExitCode2) {
  TestProgram compare(Command({"--", "--momentun=0.5"}));
  EXPECT_EQ(compare.Finish().code, 2);
  EXPECT_THAT(compare.err(), ElementsAre(HasSubstr("--momentun")));
}

TEST_F(CompareTest, NoBandwidthIsThisMachineAlone) {
  TestProgram compare(Command({"--bandwidth=none", "--workers=2", "--topologies=ring"}));
  EXPECT_TRUE(compare.Finish(absl::Seconds(120)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(compare.out(), Not(Contains(HasSubstr("redict"))));
  proto::RunRecords records;
  ASSERT_TRUE(ParseJson(ReadJson(), "compare.json", &records).ok());
  EXPECT_EQ(records.networks_size(), 0);
  for (const proto::Run& run : records.runs()) EXPECT_EQ(run.bandwidth(), "");
}

}  // namespace
}  // namespace gradsync
