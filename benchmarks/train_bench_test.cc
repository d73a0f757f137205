// Runs the program itself: a real model, real ranks and servers.

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/records/proto_json.h"
#include "core/plan/job_spec.h"
#include "core/plan/slice_traffic.h"
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

Outcome RunProgram(const std::string& program_path, const std::vector<std::string>& flags) {
  std::vector<std::string> argv = {program_path};
  argv.insert(argv.end(), flags.begin(), flags.end());
  TestProgram program(argv);
  Outcome outcome;
  outcome.exit_code = program.Finish(absl::Seconds(120)).code;
  outcome.out = absl::StrJoin(program.out(), "\n");
  outcome.errors = program.err();
  return outcome;
}

Outcome RunBench(const std::vector<std::string>& flags) {
  return RunProgram("benchmarks/train_bench", flags);
}

std::string Record() {
  const std::string path = testing::TempDir() + "/mlp.json";
  const Outcome outcome = RunBench(
      {"--record=" + path, "--model=mlp", "--batch_size=8", "--steps=6", "--warmup_steps=2"});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  return path;
}

// Once for all tests.
const std::string& Recorded() {
  static const std::string* const path = new std::string(Record());
  return *path;
}

TEST(TrainBenchTest, ARecordedStepIsReplayedUnderEveryTopologyAndVerified) {
  const std::string& path = Recorded();
  const auto profile = ReadStepProfile(path);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->batch_size(), 8);
  EXPECT_THAT(profile->command(), HasSubstr("--model=mlp"));

  const std::string json = testing::TempDir() + "/replay.json";
  const Outcome outcome =
      RunBench({"--replay=" + path, "--topologies=local,ring,ps", "--links=grpc", "--worker=2",
                "--server=2", "--update=worker,owner", "--bucket_bytes=64KiB", "--steps=5",
                "--warmup_steps=2", "--straggler=1:2", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.errors, testing::IsEmpty());
  EXPECT_THAT(outcome.out, HasSubstr("#wrong"));

  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.runs_size(), 6);
  const double compute_ms = 1e-3 * (profile->forward_us() + profile->backward_us());
  for (const proto::Run& run : records.runs()) {
    EXPECT_EQ(run.profile(), "mlp");
    EXPECT_EQ(run.straggler(), "1:2");
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.steps(), 3);
    EXPECT_EQ(run.workers(), 2);
    EXPECT_GE(run.step_ms_p50(), 2 * compute_ms);  // the straggler's
    if (run.topology() == "local") continue;
    EXPECT_GE(run.wire_tx_bytes_total(), run.bytes());
  }
}

TEST(TrainBenchTest, WorkersThatDoNotWaitAreReplayedAndVerifiedToo) {
  const std::string json = testing::TempDir() + "/staleness.json";
  const Outcome outcome =
      RunBench({"--replay=" + Recorded(), "--topology=ring,ps", "--link=grpc", "--workers=3",
                "--servers=2", "--update=owner", "--consistency=bsp,ssp:1,asp", "--straggler=2:3",
                "--steps=14", "--warmup_steps=2", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.errors, testing::IsEmpty());
  for (const char* group : {"group: bsp, ", "group: ssp:1, ", "group: asp, "}) {
    EXPECT_THAT(outcome.out, HasSubstr(group));
  }
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  std::vector<std::string> consistencies;
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.DebugString());
    consistencies.push_back(run.topology() + " " + run.consistency());
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.steps(), 12);
    EXPECT_GT(run.steps_per_s(), 0);
    double steps = 0;
    for (double count : run.staleness_histogram()) steps += count;
    EXPECT_EQ(steps, run.consistency() == "bsp" ? 0 : 3 * 14);
    EXPECT_EQ(run.max_staleness(), std::max(0, run.staleness_histogram_size() - 1));
    const int most = run.consistency() == "bsp" ? 0 : run.consistency() == "ssp:1" ? 1 : 14;
    EXPECT_LE(run.max_staleness(), most);
  }
  EXPECT_THAT(consistencies, testing::ElementsAre("ring bsp", "ps bsp", "ps ssp:1", "ps asp"));
}

TEST(TrainBenchTest, OnAnEmulatedNetworkThePredictionStandsBesideTheMeasurement) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  const std::string json = testing::TempDir() + "/network.json";
  const Outcome outcome =
      RunBench({"--replay=" + Recorded(), "--topology=ring,ps", "--workers=2", "--servers=2",
                "--placement=colocated", "--bandwidths=200mbit,400mbit", "--steps=5",
                "--burst=96KiB", "--tcp_rmem=4096 65536 262144", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.networks_size(), 2);
  for (const proto::Network& network : records.networks()) {
    EXPECT_EQ(network.burst_bytes(), 96 << 10);
    EXPECT_EQ(network.tcp_rmem(), "4096 65536 262144");
  }
  ASSERT_EQ(records.runs_size(), 4);
  ASSERT_EQ(records.predictions_size(), 4);
  for (int i = 0; i < records.runs_size(); ++i) {
    const proto::Run& run = records.runs(i);
    const proto::Run& predicted = records.predictions(i);
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.link(), LinkName(kLinkBetweenHosts));
    EXPECT_EQ(run.bandwidth(), i < 2 ? "200mbit" : "400mbit");
    EXPECT_EQ(predicted.bandwidth(), run.bandwidth());
    EXPECT_EQ(predicted.topology(), run.topology());
    EXPECT_EQ(predicted.wire_tx_bytes_max_node(), run.wire_tx_bytes_max_node());
    EXPECT_GT(predicted.step_ms_p50(), 0);
  }
}

// mlp has three blocks; a micro-batch of 4 is a part of the recorded 8.
TEST(TrainBenchTest, StagesAreReplayedWithRealTensorsAndExchanges) {
  const std::string json = testing::TempDir() + "/stages.json";
  const Outcome outcome = RunBench({"--replay=" + Recorded(), "--mesh=pipeline=2;data=2,pipeline=2",
                                    "--topology=ring,ps", "--servers=3", "--pipeline_schedule=1f1b",
                                    "--micro_batches=3", "--global_batch_size=20", "--split=1",
                                    "--steps=6", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("data=2,pipeline=2, 1f1b, 3 x 4 samples, cut before 1"));
  const auto profile = ReadStepProfile(Recorded());
  ASSERT_TRUE(profile.ok()) << profile.status();
  // What passes the cut: the first block's output of all samples.
  const double passed = 4 * 20 * profile->blocks(0).output_bytes() / 4;
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.runs_size(), 1 + 2);
  for (const proto::Run& run : records.runs()) {
    SCOPED_TRACE(run.DebugString());
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.steps(), 3);
    EXPECT_GT(run.step_ms_p50(), 0);
    EXPECT_EQ(run.micro_batches(), 3);
    if (run.workers() == 4) continue;
    EXPECT_EQ(run.wire_tx_bytes_max_node(), passed);
    EXPECT_EQ(run.wire_rx_bytes_max_node(), passed);
  }
}

std::string RecordedSlice(const std::vector<std::string>& flags) {
  const std::string path = testing::TempDir() + "/slice.json";
  std::vector<std::string> all = {"--record=" + path, "--model=gpt",     "--gpt_layers=2",
                                  "--gpt_width=16",   "--gpt_heads=2",   "--gpt_context=8",
                                  "--batch_size=4",   "--mesh=tensor=2", "--steps=4",
                                  "--warmup_steps=1"};
  all.insert(all.end(), flags.begin(), flags.end());
  const Outcome outcome = RunBench(all);
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  return path;
}

TEST(TrainBenchTest, SlicesAreReplayedWithRealTensorsAndExchanges) {
  for (bool split_sequence : {false, true}) {
    const std::string split = split_sequence ? "--sequence_parallel" : "--nosequence_parallel";
    const std::string json = testing::TempDir() + "/slices.json";
    const Outcome outcome = RunBench(
        {"--replay=" + RecordedSlice({split}), "--mesh=tensor=2;data=2,tensor=2", split,
         "--topology=ring,ps", "--servers=2", "--micro_batches=2", "--steps=4", "--json=" + json});
    EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
    const SlicedGpt gpt = {2, split_sequence, /*layers=*/2, /*width=*/16, /*context=*/8};
    const auto passed = static_cast<double>(2 * SliceTxBytes(gpt, 4, /*recomputes=*/false, 0));
    proto::RunRecords records;
    ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
    ASSERT_EQ(records.runs_size(), 1 + 2);
    for (const proto::Run& run : records.runs()) {
      SCOPED_TRACE(run.DebugString());
      EXPECT_EQ(run.wrong(), 0);
      EXPECT_GT(run.step_ms_p50(), 0);
      if (run.workers() == 4) continue;
      EXPECT_EQ(run.wire_tx_bytes_max_node(), passed);
    }
  }
}

TEST(TrainBenchTest, SlicesOnAnEmulatedNetworkArePredictedToTheByte) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  const std::string json = testing::TempDir() + "/slices_on_hosts.json";
  const Outcome outcome =
      RunBench({"--replay=" + RecordedSlice({}), "--mesh=data=2,tensor=2", "--topology=ring",
                "--micro_batches=1", "--bandwidth=200mbit", "--steps=4", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.runs_size(), 1);
  ASSERT_EQ(records.predictions_size(), 1);
  EXPECT_EQ(records.predictions(0).wire_tx_bytes_max_node(),
            records.runs(0).wire_tx_bytes_max_node());
  EXPECT_GT(records.predictions(0).step_ms_p50(), 0);
}

TEST(TrainBenchTest, StagesOnAnEmulatedNetworkArePredictedToTheByte) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  const std::string json = testing::TempDir() + "/stages_on_hosts.json";
  const Outcome outcome = RunBench({"--replay=" + Recorded(), "--mesh=data=2,pipeline=2",
                                    "--topology=ring,ps", "--servers=2", "--placement=colocated",
                                    "--bandwidth=200mbit", "--steps=5", "--json=" + json});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(json, &records), absl::OkStatus());
  ASSERT_EQ(records.runs_size(), 2);
  ASSERT_EQ(records.predictions_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const proto::Run& predicted = records.predictions(i);
    EXPECT_EQ(records.runs(i).wrong(), 0);
    EXPECT_EQ(predicted.wire_tx_bytes_max_node(), records.runs(i).wire_tx_bytes_max_node());
    EXPECT_EQ(predicted.wire_rx_bytes_max_node(), records.runs(i).wire_rx_bytes_max_node());
    EXPECT_GT(predicted.step_ms_p50(), 0);
  }
}

// Six blocks of a bucket each, computed in next to no time.
std::string SixBlocks() {
  std::string tensors, blocks;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&tensors, i == 0 ? "" : ", ", R"({"name": "t)", i, R"(", "numel": )",
                    3000 + 500 * i, R"(, "ready_us": )", 500 + 100 * i, "}");
    absl::StrAppend(&blocks, i == 0 ? "" : ", ", R"({"name": "b)", i,
                    R"(", "forward_us": 60, "backward_us": 100, "tensors": ["t)", 5 - i, "\"]}");
  }
  const std::string path = testing::TempDir() + "/six.json";
  std::ofstream(path) << R"({"model": "six", "batch_size": 4, "threads": 1, "forward_us": 400, )"
                      << R"("backward_us": 600, "update_us": 10, "tensors": [)" << tensors
                      << R"(], "blocks": [)" << blocks << "]}";
  return path;
}

// Every process counts as a host, as where servers are dedicated.
TEST(TrainBenchTest, WhatOwnersKeepIsPredictedToTheByte) {
  const std::string profile = SixBlocks();
  const std::vector<std::string> job = {"--topology=ring,ps",
                                        "--workers=2",
                                        "--servers=2",
                                        "--zero=2,3",
                                        "--bucket_bytes=8KiB",
                                        "--chunk_bytes=1KiB",
                                        "--first_bucket_bytes=8KiB"};
  const auto with = [&job](std::vector<std::string> flags) {
    flags.insert(flags.end(), job.begin(), job.end());
    return flags;
  };
  const std::string measured = testing::TempDir() + "/zero.json";
  const Outcome outcome = RunBench(with({"--replay=" + profile, "--link=grpc", "--steps=5",
                                         "--warmup_steps=2", "--json=" + measured}));
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("zero: 3"));
  const std::string predicted = testing::TempDir() + "/zero_predicted.json";
  const Outcome prediction =
      RunProgram("benchmarks/predict", with({"--profile=" + profile, "--placement=dedicated",
                                             "--bandwidth=1gbit", "--json=" + predicted}));
  EXPECT_EQ(prediction.exit_code, 0) << absl::StrJoin(prediction.errors, "\n");
  proto::RunRecords runs, predictions;
  ASSERT_EQ(ReadJson(measured, &runs), absl::OkStatus());
  ASSERT_EQ(ReadJson(predicted, &predictions), absl::OkStatus());
  ASSERT_EQ(runs.runs_size(), 2 * 2);
  ASSERT_EQ(predictions.predictions_size(), 2 * 2);
  for (const proto::Run& run : runs.runs()) {
    SCOPED_TRACE(absl::StrCat(run.topology(), ", zero ", run.zero()));
    EXPECT_EQ(run.wrong(), 0);
    EXPECT_EQ(run.update(), "owner");
    const auto found =
        std::find_if(predictions.predictions().begin(), predictions.predictions().end(),
                     [&run](const auto& other) {
                       return other.topology() == run.topology() && other.zero() == run.zero();
                     });
    ASSERT_NE(found, predictions.predictions().end());
    EXPECT_DOUBLE_EQ(run.wire_tx_bytes_max_node(), found->wire_tx_bytes_max_node());
    EXPECT_DOUBLE_EQ(run.wire_rx_bytes_max_node(), found->wire_rx_bytes_max_node());
    // Of six blocks four come twice.
    if (run.zero() == 3) {
      const double most = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
      EXPECT_GT(most, (run.servers() > 0 ? 1.5 : 1.2) * run.bytes());
    }
    EXPECT_EQ(found->server_memory_bytes() > 0, run.servers() > 0);
    EXPECT_GT(found->worker_memory_bytes(), 0);
  }
}

TEST(TrainBenchTest, BadFlagsAndFilesAreOneLineAndExitCodeTwo) {
  const std::string broken = testing::TempDir() + "/broken.json";
  std::ofstream(broken) << "{\"model\": \"x\", \"tensors\": []}";
  const std::string& good = Recorded();
  const std::vector<std::vector<std::string>> lines = {
      {},
      {"--record=/tmp/x", "--replay=" + good},
      {"--replay=" + broken},
      {"--replay=/nowhere/x.json"},
      {"--replay=" + good, "--topology=star"},
      {"--replay=" + good, "--workers=2", "--straggler=2:2"},
      {"--replay=" + good, "--json=/nowhere/x"},
      {"--replay=" + good, "stray"},
      {"--replay=" + good, "--topology=ring", "--update=owner", "--consistency=ssp:2"},
      {"--replay=" + good, "--update=owner", "--consistency=ssp:2"},
      {"--replay=" + good, "--mesh=pipeline=9"},
      {"--replay=" + good, "--zero=4"},
      {"--replay=" + good, "--zero=3", "--topology=local"},
      {"--replay=" + good, "--zero=2", "--mesh=pipeline=2"},
      {"--replay=" + good, "--mesh=pipeline=2", "--pipeline_schedule=x"},
      {"--record=/tmp/x", "--threads=0"},
      {"--record=/tmp/x", "--precision=fp8"},
      {"--record=/tmp/x", "--precision=fp16"},
      {"--record=/tmp/x", "--straggler=0:2"},
      {"--record=/tmp/x", "--mesh=data=2"},
      {"--record=/tmp/x", "--model=mlp", "--mesh=tensor=2"},
      {"--record=/tmp/x", "--sequence_parallel"},
      {"--replay=" + good, "--sequence_parallel"},
      {"--replay=" + good, "--mesh=tensor=2"},
      {"--replay=" + good, "--micro_batches=8"},
      {"--replay=" + good, "--mesh=shard=2", "--zero=2", "--micro_batches=1"}};
  for (const std::vector<std::string>& flags : lines) {
    const Outcome outcome = RunBench(flags);
    EXPECT_EQ(outcome.exit_code, 2) << absl::StrJoin(flags, " ");
    EXPECT_EQ(outcome.errors.size(), 1u) << absl::StrJoin(outcome.errors, "\n");
  }
  EXPECT_THAT(RunBench({"--replay=" + broken}).errors[0], HasSubstr(broken + ": tensors: "));
  EXPECT_THAT(RunBench({"--replay=/nowhere/x.json"}).errors[0], HasSubstr("/nowhere/x.json"));
  EXPECT_THAT(RunBench({"--replay=" + good, "--zero=3", "--compression=fp16"}).errors[0],
              HasSubstr("--zero: expected 0 to 2 with --compression, found"));
}

// Flags are read in order, so that all before the first mistake were understood.
TEST(TrainBenchTest, OtherSpellingsOfFlagsAreUnderstood) {
  const Outcome all = RunBench(
      {"--profiles=x", "--topologies=ring", "--links=grpc", "--updates=worker", "--ranks=2",
       "--worker=2", "--server=1", "--placements=dedicated", "--compressions=none",
       "--consistencies=bsp", "--bandwidths=1Gbps", "--compute_scales=1", "--no_such_flag"});
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_THAT(all.errors, testing::ElementsAre(HasSubstr("--no_such_flag")));
}

TEST(TrainBenchTest, ARecordThatCannotBeMadeIsAnErrorBeforeAnythingIsTrained) {
  const Outcome model = RunBench({"--record=" + testing::TempDir() + "/x", "--model=vgg"});
  EXPECT_EQ(model.exit_code, 2);
  ASSERT_EQ(model.errors.size(), 1u);
  EXPECT_THAT(model.errors[0], HasSubstr("vgg"));
  const Outcome file = RunBench({"--record=/nowhere/x", "--model=mlp", "--steps=5"});
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_THAT(file.errors, testing::ElementsAre(HasSubstr("/nowhere/x")));
}

TEST(TrainBenchTest, AMeasurementThatFailsIsNamedAndExitCodeOne) {
  const Outcome outcome =
      RunBench({"--replay=" + Recorded(), "--topology=ps", "--server_binary=/bin/false"});
  EXPECT_EQ(outcome.exit_code, 1);
  ASSERT_THAT(outcome.errors, testing::SizeIs(2));
  EXPECT_THAT(outcome.errors[0], HasSubstr("mlp: ps, servers 1, workers 2"));
  EXPECT_THAT(outcome.errors[1], HasSubstr("1 of 1 measurements failed"));
}

}  // namespace
}  // namespace gradsync
