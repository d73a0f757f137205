// Replicas in one process (--data_parallel), by real processes: the bits of one that accumulates
// over the same parts, alone and as ranks of a job; and what is refused.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Flags = std::vector<std::string>;
using Metrics = std::vector<proto::WorkerMetrics>;

constexpr int kSteps = 3;

Flags Job(const Flags& more) {
  return With({absl::StrCat("--steps=", kSteps), "--momentum=0.9", "--label_smoothing=0.1"}, more);
}

std::string HashOf(const Metrics& workers) {
  return workers.empty() ? "" : workers[0].params_sha256();
}

// Of `replicas` in each worker; and of as many batches one after the other.
void ExpectEqualBits(int workers, int servers, int replicas, const Flags& flags) {
  SCOPED_TRACE(::testing::PrintToString(flags));
  const Metrics in_turn = MetricsOf(
      SmallJob(workers, servers,
               With(Job(flags), {"--batch_size=2", absl::StrCat("--accumulate=", replicas)})));
  const Metrics parallel =
      MetricsOf(SmallJob(workers, servers,
                         With(Job(flags), {absl::StrCat("--batch_size=", 2 * replicas),
                                           absl::StrCat("--data_parallel=", replicas),
                                           absl::StrCat("--threads=", replicas)})));
  EXPECT_THAT(HashOf(in_turn), SizeIs(64));
  EXPECT_EQ(HashOf(parallel), HashOf(in_turn));
  ASSERT_THAT(parallel, SizeIs(workers));
  ASSERT_THAT(in_turn, SizeIs(workers));
  for (int rank = 0; rank < workers; ++rank) {
    EXPECT_THAT(parallel[rank].loss(), ::testing::ElementsAreArray(in_turn[rank].loss()));
  }
}

TEST(DataParallelTest, OneProcessEndsWithTheBitsOfAccumulation) {
  ExpectEqualBits(1, 0, 2, {"--topology=local"});
  ExpectEqualBits(1, 0, 2, {"--topology=local", "--model=resnet18", "--data=synthetic:8"});
  ExpectEqualBits(1, 0, 4,
                  {"--topology=local", "--model=gpt", "--gpt_width=12", "--gpt_layers=2",
                   "--gpt_heads=2", "--gpt_context=8", "--optimizer=adam"});
}

TEST(DataParallelTest, RanksOfARingMayHaveReplicasEach) {
  ExpectEqualBits(2, 0, 2, {"--topology=ring", "--link=grpc", "--bucket_bytes=16K"});
  ExpectEqualBits(2, 0, 2, {"--topology=ring", "--link=shm", "--zero=1", "--max_norm=0.5"});
}

TEST(DataParallelTest, WorkersOfServersMayHaveReplicasEach) {
  ExpectEqualBits(2, 1, 2, {"--topology=ps", "--bucket_bytes=16K"});
  ExpectEqualBits(2, 1, 3, {"--topology=ps", "--update=owner"});
}

// The samples run out in the midst of a step: 50,000 are 20 batches of 2,400 and one of 2,000, whose
// last part is smaller.
TEST(DataParallelTest, AnEpochEndsWithThePartsThatAreLeft) {
  const Flags epoch = {"--topology=local", "--epochs=1", "--steps=0", "--evaluate"};
  const Metrics in_turn = MetricsOf(
      SmallJob(1, 0, With(Job(epoch), {"--steps=0", "--batch_size=800", "--accumulate=3"})));
  const Metrics parallel = MetricsOf(
      SmallJob(1, 0, With(Job(epoch), {"--steps=0", "--batch_size=2400", "--data_parallel=3"})));
  ASSERT_THAT(parallel, SizeIs(1));
  ASSERT_THAT(in_turn, SizeIs(1));
  EXPECT_EQ(parallel[0].params_sha256(), in_turn[0].params_sha256());
  EXPECT_EQ(parallel[0].loss_size(), 21);
  EXPECT_EQ(parallel[0].test_accuracy(), in_turn[0].test_accuracy());
  ASSERT_THAT(parallel[0].epochs(), SizeIs(1));
  EXPECT_EQ(parallel[0].epochs(0).samples(), 50000);
}

TEST(DataParallelTest, MetricsSayWhereTheTimeIsAndWhatDevice0Bears) {
  const Metrics all = MetricsOf(SmallJob(
      1, 0, Job({"--topology=local", "--data_parallel=2", "--batch_size=4", "--warmup_steps=1"})));
  ASSERT_THAT(all, SizeIs(1));
  const proto::WorkerMetrics& metrics = all[0];
  EXPECT_EQ(metrics.data_parallel(), 2);
  for (const auto* times : {&metrics.replicate_ms(), &metrics.scatter_ms(), &metrics.apply_ms(),
                            &metrics.gather_ms(), &metrics.reduce_ms()}) {
    EXPECT_THAT(*times, SizeIs(kSteps - 1));
  }
  for (int i = 0; i < metrics.apply_ms_size(); ++i) {
    const double parts = metrics.replicate_ms(i) + metrics.scatter_ms(i) + metrics.apply_ms(i) +
                         metrics.gather_ms(i) + metrics.reduce_ms(i);
    EXPECT_GT(metrics.apply_ms(i), 0);
    EXPECT_LE(parts, metrics.forward_ms(i) + metrics.backward_ms(i) + 1e-6);
  }
  EXPECT_GT(metrics.device0_share(), 0);
  EXPECT_LT(metrics.device0_share(), 1);
  // Parameters one way, gradients the other, and a part of the batch.
  EXPECT_GT(metrics.device0_tx_bytes_per_step(), 4 * metrics.parameters());
  EXPECT_GE(metrics.device0_rx_bytes_per_step(), 4 * metrics.parameters());
}

TEST(DataParallelTest, TheJobSaysSoWhenItEnds) {
  WorkerProcesses worker({Job({"--model=mlp", "--topology=local", "--data_parallel=2"})});
  EXPECT_TRUE(worker[0].Finish().ok());
  EXPECT_THAT(worker[0].out(), Contains(HasSubstr("% of the work of 2 replicas, sends them")));
}

TEST(DataParallelTest, WhatDoesNotWorkIsRefusedInOneLine) {
  struct Refused {
    Flags flags;
    std::string words;
  };
  for (const Refused& refused : std::vector<Refused>{
           {{"--data_parallel=0"}, "--data_parallel: expected at least 1, found \"0\""},
           {{"--data_parallel=-2"}, "--data_parallel: expected at least 1, found \"-2\""},
           {{"--data_parallel=3", "--batch_size=4"},
            "--batch_size: expected a multiple of --data_parallel=3, found \"4\""},
           {{"--data_parallel=8", "--batch_size=4"},
            "--batch_size: expected a multiple of --data_parallel=8, found \"4\""},
           {{"--data_parallel=2", "--device=cuda"},
            "--data_parallel: expected 1 with --device=cuda"},
           {{"--data_parallel=2", "--precision=bf16"},
            "--data_parallel: expected 1 with --precision=bf16"},
           {{"--data_parallel=2", "--precision=fp16"},
            "--data_parallel: expected 1 with --precision=fp16"},
           {{"--data_parallel=2", "--zero=2"}, "--data_parallel: expected 1 with --zero=2 and 3"},
           {{"--data_parallel=2", "--zero=3"}, "--data_parallel: expected 1 with --zero=2 and 3"},
           {{"--data_parallel=2", "--sync_batchnorm"},
            "--data_parallel: expected 1 with --sync_batchnorm"},
           {{"--data_parallel=2", "--mesh=pipeline=2"},
            "--data_parallel: expected 1 with stages or slices"},
           {{"--data_parallel=2", "--mesh=tensor=2"},
            "--data_parallel: expected 1 with stages or slices"}}) {
    SCOPED_TRACE(::testing::PrintToString(refused.flags));
    TestProgram worker(With({"worker/worker", "--model=mlp", "--topology=ring", "--world_size=2",
                             "--rank=0", "--master=127.0.0.1:0"},
                            refused.flags));
    EXPECT_EQ(worker.Finish().code, 2);
    EXPECT_THAT(worker.err(), ElementsAre(HasSubstr(refused.words)));
  }
}

}  // namespace
}  // namespace gradsync
