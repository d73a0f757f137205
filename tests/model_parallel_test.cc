// Stages in one process (--model_parallel), by real processes: the bits of one that accumulates over
// the same batches and of as many processes, alone and as ranks of a job; and what is refused.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Flags = std::vector<std::string>;
using Metrics = std::vector<proto::WorkerMetrics>;

Flags SmallResNet() {
  return {"--model=resnet18", "--data=synthetic:16", "--batch_size=3", "--steps=2",
          "--lr=0.02",        "--momentum=0.9",      "--stem=cifar"};
}

Flags SmallGpt() {
  return {"--model=gpt",  "--gpt_width=16",  "--gpt_layers=3", "--gpt_heads=2", "--gpt_context=8",
          "--dropout=0.2", "--batch_size=2", "--steps=3",      "--optimizer=adam"};
}

// All of its workers'.
std::string HashOf(int workers, int servers, const Flags& flags) {
  SCOPED_TRACE(::testing::PrintToString(flags));
  const Metrics metrics = MetricsOf(SmallJob(workers, servers, flags));
  EXPECT_THAT(metrics, SizeIs(workers));
  std::string hash = metrics.empty() ? "" : metrics[0].params_sha256();
  EXPECT_THAT(hash, SizeIs(64));
  for (const proto::WorkerMetrics& worker : metrics) EXPECT_EQ(worker.params_sha256(), hash);
  return hash;
}

TEST(ModelParallelTest, EveryScheduleEndsWithTheBitsOfAccumulation) {
  const Flags alone = With(SmallResNet(), {"--topology=local"});
  const std::string expected = HashOf(1, 0, With(alone, {"--accumulate=3"}));
  const Flags cut = With(alone, {"--micro_batches=3", "--model_parallel=2"});
  for (const std::string schedule : {"naive", "gpipe", "1f1b"}) {
    EXPECT_EQ(HashOf(1, 0, With(cut, {"--pipeline_schedule=" + schedule, "--split=5"})), expected);
  }
  EXPECT_EQ(HashOf(1, 0, With(cut, {"--model_parallel=3", "--split=1,9", "--threads=3"})), expected);
  EXPECT_EQ(HashOf(1, 0, cut), expected) << "cut by time";
}

// Each stage is at another micro-batch, with what is random in it.
TEST(ModelParallelTest, RandomLayersAndRecomputedOnesHaveTheSameBits) {
  const Flags alone = With(SmallGpt(), {"--topology=local"});
  const std::string expected = HashOf(1, 0, With(alone, {"--accumulate=4"}));
  const Flags cut = With(alone, {"--micro_batches=4", "--model_parallel=3", "--split=2,3"});
  EXPECT_EQ(HashOf(1, 0, cut), expected);
  EXPECT_EQ(HashOf(1, 0, With(cut, {"--activation_checkpointing"})), expected);
  EXPECT_EQ(HashOf(1, 0, With(cut, {"--pipeline_schedule=gpipe"})), expected);
}

TEST(ModelParallelTest, FewerMicroBatchesThanStagesAndASmallLastOne) {
  // 50,000 samples are 6 batches, the last of 5,000, so steps of 4 and of 2.
  const Flags mlp = {"--topology=local", "--model=mlp", "--batch_size=9000",
                     "--steps=0",        "--epochs=1",  "--lr=0.05"};
  EXPECT_EQ(HashOf(1, 0, With(mlp, {"--micro_batches=4", "--model_parallel=2"})),
            HashOf(1, 0, With(mlp, {"--accumulate=4"})));
  const Flags one = With(SmallGpt(), {"--topology=local"});
  EXPECT_EQ(HashOf(1, 0, With(one, {"--model_parallel=3"})), HashOf(1, 0, one));
}

TEST(ModelParallelTest, RanksOfAJobMayHaveStagesEach) {
  const Flags cut = {"--micro_batches=3", "--model_parallel=2", "--bucket_bytes=16K"};
  for (const Flags& job : std::vector<Flags>{
           {"--topology=ring", "--link=grpc", "--max_norm=0.5"},
           {"--topology=ring", "--link=shm", "--zero=1", "--ema_decay=0.9", "--evaluate_every=99"},
           {"--topology=ps", "--link=grpc"},
           {"--topology=ps", "--link=grpc", "--update=owner"}}) {
    const int servers = job[0] == "--topology=ps" ? 1 : 0;
    const Flags flags = With(SmallResNet(), job);
    EXPECT_EQ(HashOf(2, servers, With(flags, cut)),
              HashOf(2, servers, With(flags, {"--accumulate=3", "--bucket_bytes=16K"})));
  }
}

// With the running statistics of whole steps, too.
TEST(ModelParallelTest, ThreadsAndProcessesAreTheSameStages) {
  const Flags flags = With(SmallResNet(), {"--evaluate", "--batch_size=50", "--data=synthetic:8",
                                           "--stem=imagenet", "--micro_batches=2", "--split=4"});
  const Metrics threads =
      MetricsOf(SmallJob(1, 0, With(flags, {"--topology=local", "--model_parallel=2"})));
  const Metrics processes =
      MetricsOf(SmallJob(2, 0, With(flags, {"--topology=local", "--mesh=pipeline=2"})));
  ASSERT_THAT(threads, SizeIs(1));
  ASSERT_THAT(processes, SizeIs(2));
  EXPECT_EQ(threads[0].params_sha256(), processes[0].params_sha256());
  EXPECT_EQ(threads[0].test_loss(), processes[0].test_loss());
  EXPECT_THAT(threads[0].loss(), ::testing::ElementsAreArray(processes[0].loss()));
}

TEST(ModelParallelTest, MetricsSayHowTheModelIsCutAndHowBusyStagesAre) {
  const Metrics all = MetricsOf(
      SmallJob(1, 0, With(SmallResNet(), {"--topology=local", "--model_parallel=2", "--steps=3",
                                          "--micro_batches=2", "--warmup_steps=1"})));
  ASSERT_THAT(all, SizeIs(1));
  const proto::WorkerMetrics& metrics = all[0];
  EXPECT_EQ(metrics.model_parallel(), 2);
  EXPECT_EQ(metrics.micro_batches(), 2);
  EXPECT_EQ(metrics.pipeline_schedule(), "1f1b");
  EXPECT_NE(metrics.split(), "");
  EXPECT_EQ(metrics.mesh(), "");
  ASSERT_THAT(metrics.stage_busy_share(), SizeIs(2));
  EXPECT_THAT(metrics.stage_busy_share(), Each(::testing::Gt(0)));
  EXPECT_THAT(metrics.stage_busy_share(), Each(::testing::Lt(1)));
  for (int i = 0; i < metrics.step_ms_size(); ++i) {
    EXPECT_LE(metrics.forward_ms(i) + metrics.backward_ms(i) + metrics.exposed_ms(i),
              metrics.step_ms(i) + 1e-6);
  }
}

TEST(ModelParallelTest, TheJobSaysSoWhenItEnds) {
  WorkerProcesses worker(
      {{"--model=mlp", "--topology=local", "--model_parallel=2", "--steps=3", "--split=1"}});
  EXPECT_TRUE(worker[0].Finish().ok());
  EXPECT_THAT(worker[0].out(), Contains(HasSubstr("of the time; cut before 1")));
}

TEST(ModelParallelTest, WhatDoesNotWorkIsRefusedInOneLine) {
  struct Case {
    Flags flags;
    std::string message;
  };
  for (const Case& c : std::vector<Case>{
           {{"--model_parallel=0"}, "--model_parallel: expected at least 1, found \"0\""},
           {{"--model_parallel=2", "--split=9"}, "--split: expected auto, or 1 of"},
           {{"--model_parallel=40"}, "expected at most "},
           {{"--model_parallel=2", "--accumulate=2", "--micro_batches=2"},
            "--accumulate: expected 1 with --micro_batches"},
           {{"--model_parallel=2", "--data_parallel=2"},
            "--model_parallel: expected 1 with --data_parallel"},
           {{"--model_parallel=2", "--device=cuda"},
            "--model_parallel: expected 1 with --device=cuda"},
           {{"--model_parallel=2", "--precision=bf16"},
            "--model_parallel: expected 1 with --precision=bf16"},
           {{"--model_parallel=2", "--sync_batchnorm"},
            "--model_parallel: expected 1 with --sync_batchnorm"},
           {{"--model_parallel=2", "--straggler=0:2"},
            "--model_parallel: expected 1 with --straggler"},
           {{"--model_parallel=2", "--trace=/tmp/x"}, "--model_parallel: expected 1 with --trace"}}) {
    WorkerProcesses job({With({"--model=mlp", "--topology=local", "--steps=1"}, c.flags)});
    EXPECT_EQ(job[0].Finish().code, 2) << c.message;
    EXPECT_THAT(job[0].err(), ElementsAre(HasSubstr(c.message)));
  }
  for (const auto& [flag, message] : std::vector<std::pair<std::string, std::string>>{
           {"--zero=2", "--model_parallel: expected 1 with --zero=2 and 3"},
           {"--zero=3", "--model_parallel: expected 1 with --zero=2 and 3"},
           {"--mesh=pipeline=2", "--model_parallel: expected 1 with stages or slices (--mesh)"}}) {
    WorkerProcesses job({{"--model=mlp", "--topology=ring", "--model_parallel=2", flag}},
                        /*world_size=*/2);
    EXPECT_EQ(job[0].Finish().code, 2);
    EXPECT_THAT(job[0].err(), ElementsAre(HasSubstr(message)));
  }
}

}  // namespace
}  // namespace gradsync
