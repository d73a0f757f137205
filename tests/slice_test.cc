// Models cut into slices, by real processes: the losses of one process within rounding, the same
// bits in every run, bytes to the byte, and a lost slice named on all others.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/write_file.h"
#include "core/plan/slice_traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Flags = std::vector<std::string>;
using Metrics = std::vector<proto::WorkerMetrics>;

constexpr double kRounding = 1e-5;

// A text of some letters that a small model learns in some steps.
std::string Text() {
  const std::string path = testing::TempDir() + "/text";
  std::string text;
  for (int i = 0; i < 6000; ++i) text.push_back(static_cast<char>('a' + (i * i + 3 * i) % 23));
  EXPECT_TRUE(WriteFileAtomically(path, text).ok());
  return path;
}

// The rate is one at which a difference of rounding hardly grows in 50 steps: with 0.2, another
// matrix kernel in one process alone is 8e-6 away at the end.
Flags SmallGpt() {
  return {"--model=gpt",     "--gpt_width=16", "--gpt_layers=2",       "--gpt_heads=4",
          "--gpt_context=8", "--batch_size=2", "--steps=50",           "--dropout=0",
          "--lr=0.1",        "--momentum=0.9", "--data=text:" + Text()};
}

SlicedGpt SlicesOfSmallGpt(int slices) {
  SlicedGpt gpt;
  gpt.slices = slices;
  gpt.layers = 2;
  gpt.width = 16;
  gpt.context = 8;
  return gpt;
}

// That all slices sent so much in each step, and in shared memory read as much. Over streams what
// comes is counted when it comes, which may be before the first measured step.
void ExpectBytes(const Metrics& slices, int64_t bytes, bool streams = false) {
  for (const proto::WorkerMetrics& slice : slices) {
    EXPECT_EQ(slice.slice_tx_bytes_per_step(), static_cast<double>(bytes));
    if (streams) continue;
    EXPECT_EQ(slice.slice_rx_bytes_per_step(), static_cast<double>(bytes));
  }
}

Metrics Train(int workers, int servers, const Flags& flags) {
  const Metrics metrics = MetricsOf(SmallJob(workers, servers, flags));
  EXPECT_THAT(metrics, SizeIs(workers));
  return metrics;
}

// The hash that all ranks have of the whole model.
std::string HashOf(const Metrics& ranks) {
  for (const proto::WorkerMetrics& rank : ranks) {
    EXPECT_EQ(rank.params_sha256(), ranks[0].params_sha256());
  }
  EXPECT_THAT(ranks[0].params_sha256(), SizeIs(64));
  return ranks[0].params_sha256();
}

// Of every step, the mean over these ranks.
std::vector<double> Losses(const Metrics& metrics, const std::vector<int>& ranks) {
  std::vector<double> losses(metrics[0].loss_size());
  for (int rank : ranks) {
    for (size_t i = 0; i < losses.size(); ++i) {
      losses[i] += metrics[rank].loss(static_cast<int>(i)) / static_cast<double>(ranks.size());
    }
  }
  return losses;
}

void ExpectClose(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], kRounding * expected[i]) << "step " << i + 1;
  }
}

TEST(SliceTest, TwoSlicesTrainAsOneProcessDoesAndEvaluateTheWholeModel) {
  const Flags flags = With(SmallGpt(), {"--dropout=0.1", "--evaluate"});
  const Metrics one = Train(1, 0, flags);
  const Metrics two = Train(2, 0, With(flags, {"--mesh=tensor=2"}));
  ExpectClose(Losses(two, {0}), Losses(one, {0}));
  EXPECT_LT(one[0].loss(49), 0.5 * one[0].loss(0));  // It learns, so a wrong gradient would show.
  EXPECT_NEAR(two[0].test_loss(), one[0].test_loss(), kRounding * one[0].test_loss());
  EXPECT_NEAR(two[0].test_accuracy(), one[0].test_accuracy(), 1e-3);
  const Metrics again = Train(
      2, 0, With(flags, {"--mesh=tensor=2", "--tensor_link=grpc", "--activation_checkpointing"}));
  EXPECT_EQ(HashOf(again), HashOf(two));
  const Metrics sequences = Train(2, 0, With(flags, {"--mesh=tensor=2", "--sequence_parallel"}));
  ExpectClose(Losses(sequences, {0}), Losses(one, {0}));
  HashOf(sequences);
}

TEST(SliceTest, SlicesWithReplicasTrainAsOneProcessDoesUnderEveryTopology) {
  const Metrics one = Train(1, 0, With(SmallGpt(), {"--batch_size=4"}));
  const Flags flags = With(SmallGpt(), {"--mesh=data=2,tensor=2"});
  const Metrics ring =
      Train(4, 0, With(flags, {"--topology=ring", "--link=grpc", "--tensor_link=grpc"}));
  ExpectClose(Losses(ring, {0, 2}), Losses(one, {0}));
  EXPECT_EQ(Losses(ring, {1}), Losses(ring, {0}));
  for (const int servers : {0, 2}) {  // without any, the replicas of a slice are its servers
    const Metrics ps = Train(4, servers, With(flags, {"--topology=ps", "--update=owner"}));
    EXPECT_EQ(HashOf(ps), HashOf(ring));
  }
}

// Nothing is trained, so the parts of all slices are those of the model that one process draws.
TEST(SliceTest, WeightsAreDrawnWholeAndThenCut) {
  const Flags flags = With(SmallGpt(), {"--steps=1", "--lr=0"});
  const std::string whole = HashOf(Train(1, 0, flags));
  EXPECT_EQ(HashOf(Train(2, 0, With(flags, {"--mesh=tensor=2"}))), whole);
  EXPECT_EQ(HashOf(Train(4, 0, With(flags, {"--mesh=tensor=4"}))), whole);
}

TEST(SliceTest, MicroBatchesAreAccumulatedAndBytesAreThoseOfTheFormula) {
  const Flags flags = With(SmallGpt(), {"--steps=10"});
  const Metrics one = Train(1, 0, With(flags, {"--accumulate=2"}));
  const Metrics two = Train(2, 0, With(flags, {"--mesh=tensor=2", "--micro_batches=2"}));
  ExpectClose(Losses(two, {0}), Losses(one, {0}));
  ExpectBytes(two, 2 * SliceTxBytes(SlicesOfSmallGpt(2), 2, /*recomputes=*/false, 0));
  SlicedGpt sequences = SlicesOfSmallGpt(2);
  sequences.split_sequence = true;
  const Flags parts = With(flags, {"--mesh=tensor=2", "--sequence_parallel"});
  ExpectBytes(Train(2, 0, parts), SliceTxBytes(sequences, 2, /*recomputes=*/false, 0));
  ExpectBytes(Train(2, 0, With(parts, {"--activation_checkpointing"})),
              SliceTxBytes(sequences, 2, /*recomputes=*/true, 0));
  const Metrics four = Train(4, 0, With(flags, {"--mesh=tensor=4", "--tensor_link=tcp"}));
  ExpectBytes(four, SliceTxBytes(SlicesOfSmallGpt(4), 2, /*recomputes=*/false, 0),
              /*streams=*/true);
}

// Kills rank 3 of four in the midst of training; all others must name it soon.
void ExpectLossIsNamed(const Flags& flags) {
  const Flags endless =
      With(SmallGpt(), {"--steps=100000000", "--mesh=data=2,tensor=2", "--timeout=60s"});
  WorkerProcesses job(std::vector<Flags>(4, With(endless, flags)));
  EXPECT_NE(job[0].AwaitLine("step 10/"), "");
  job[3].Kill(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  for (int rank : {0, 1, 2}) {
    EXPECT_EQ(job[rank].Finish(absl::Seconds(30)).code, 1);
    EXPECT_THAT(job[rank].err(), ElementsAre(HasSubstr("rank 3"))) << "rank " << rank;
  }
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(15));
}

TEST(SliceTest, ALostSliceIsNamedOnAllOthersOfRings) {
  ExpectLossIsNamed({"--topology=ring", "--link=tcp", "--tensor_link=tcp"});
  ExpectLossIsNamed({"--topology=ring", "--link=shm", "--tensor_link=shm"});
}

// Each server has two of the workers, which are its ranks 0 and 1.
TEST(SliceTest, ALostSliceIsNamedByItsRankOfTheJobWithServers) {
  for (const std::string link : {"grpc", "shm"}) {
    std::vector<std::unique_ptr<TestProgram>> servers;
    std::vector<std::string> addresses;
    for (int i : {0, 1}) {
      const std::string port_file = absl::StrCat(testing::TempDir(), "/port", i, link);
      std::filesystem::remove(port_file);  // of an earlier run
      servers.push_back(
          std::make_unique<TestProgram>(Flags{"ps_server/ps_server", "--port_file=" + port_file}));
      servers.back()->Await([&] { return std::filesystem::exists(port_file); });
      std::getline(std::ifstream(port_file), addresses.emplace_back());
    }
    ExpectLossIsNamed({"--topology=ps", "--link=" + link, "--tensor_link=grpc",
                       "--servers=" + absl::StrJoin(addresses, ",")});
    for (const auto& server : servers) {
      EXPECT_EQ(server->Finish().code, 1);
      EXPECT_THAT(server->err(), ElementsAre(HasSubstr("rank 3"))) << link;
    }
  }
}

// Each with a line that says what was wrong, before work starts.
TEST(SliceTest, WhatSlicesCannotDoIsRefused) {
  struct Case {
    Flags flags;
    std::string message;
  };
  const Flags sliced = {"--model=gpt", "--mesh=tensor=2"};
  for (const Case& c : std::vector<Case>{
           {{"--model=mlp", "--mesh=tensor=2"}, "--model: expected gpt with tensor=2 (--mesh)"},
           {With(sliced, {"--gpt_heads=3"}),
            "--gpt_heads: expected a multiple of tensor=2 (--mesh), found \"3\""},
           {With(sliced, {"--mesh=tensor=3,data=1"}),
            "--data: expected a vocabulary of a multiple"},
           {With(sliced, {"--mesh=pipeline=2,tensor=2"}),
            "--mesh: expected tensor=2 with no other"},
           {With(sliced, {"--sequence_parallel", "--gpt_context=7"}),
            "--gpt_context: expected a multiple of tensor=2 (--mesh) with --sequence_parallel"},
           {{"--mesh=data=2", "--sequence_parallel"},
            "--sequence_parallel: expected false without"},
           {With(sliced, {"--tensor_link=gloo"}), "--tensor_link: expected auto, grpc, tcp or shm"},
           {With(sliced, {"--max_norm=1"}), "--max_norm: expected 0 with slices"},
           {With(sliced, {"--checkpoint=/tmp/x"}), "--checkpoint: expected none"}}) {
    int world_size = 2;
    if (c.message.find("vocabulary") != std::string::npos) world_size = 3;
    if (c.message.find("no other") != std::string::npos) world_size = 4;
    WorkerProcesses job({c.flags}, world_size);
    EXPECT_EQ(job[0].Finish().code, 2) << c.message;
    EXPECT_THAT(job[0].err(), ElementsAre(HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace gradsync
