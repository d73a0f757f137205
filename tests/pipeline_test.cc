// Models cut into stages, by real processes: the bits of one process that accumulates over the same
// batches, whatever the schedule, and a lost stage named on all others.

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Flags = std::vector<std::string>;

// What a rank that ended well said after each `label` last; empty where it did not.
std::string LastAfter(TestProgram& rank, const std::string& label) {
  const ExitStatus ended = rank.Finish(absl::Seconds(120));
  EXPECT_EQ(ended.code, 0) << (rank.err().empty() ? "" : rank.err().back());
  std::string found;
  for (const std::string& line : rank.out()) {
    const size_t at = line.find(label);
    if (at != std::string::npos) found = line.substr(at + label.size());
  }
  return found;
}

// By rank.
std::vector<std::string> Hashes(int ranks, const Flags& flags) {
  WorkerProcesses job(std::vector<Flags>(ranks, flags));
  std::vector<std::string> hashes;
  for (int rank = 0; rank < job.size(); ++rank) {
    hashes.push_back(LastAfter(job[rank], "params_sha256 "));
  }
  return hashes;
}

std::string OneProcess(const Flags& flags) {
  const std::string hash = Hashes(1, flags)[0];
  EXPECT_THAT(hash, SizeIs(64));
  return hash;
}

Flags Stages(int count, const Flags& flags) {
  return With(flags, {absl::StrCat("--mesh=pipeline=", count)});
}

Flags SmallResNet() {
  return {"--model=resnet18", "--data=synthetic:16", "--batch_size=3", "--steps=2",
          "--lr=0.02",        "--momentum=0.9",      "--stem=cifar"};
}

Flags SmallGpt() {
  return {"--model=gpt",     "--gpt_width=16", "--gpt_layers=3", "--gpt_heads=2",
          "--gpt_context=8", "--batch_size=2", "--steps=3",      "--optimizer=adam"};
}

TEST(PipelineTest, EveryScheduleEndsWithTheBitsOfOneProcessThatAccumulates) {
  const std::string expected = OneProcess(With(SmallResNet(), {"--accumulate=3"}));
  const Flags flags = With(SmallResNet(), {"--micro_batches=3"});
  for (const std::string schedule : {"naive", "gpipe", "1f1b"}) {
    const Flags two = With(flags, {"--pipeline_schedule=" + schedule, "--split=5"});
    EXPECT_THAT(Hashes(2, Stages(2, two)), Each(expected)) << schedule;
  }
  EXPECT_THAT(Hashes(3, Stages(3, With(flags, {"--split=1,9"}))), Each(expected));
  EXPECT_THAT(Hashes(2, Stages(2, flags)), Each(expected)) << "cut by time";
}

// By memory of their host unless they are told otherwise, and say so.
TEST(PipelineTest, TensorsPassByEitherLinkWithTheSameBits) {
  const std::string expected = OneProcess(With(SmallResNet(), {"--accumulate=3"}));
  const Flags flags = Stages(3, With(SmallResNet(), {"--micro_batches=3", "--split=1,9"}));
  for (const auto& [asked, found] : std::vector<std::pair<std::string, std::string>>{
           {"auto", "shm"}, {"shm", "shm"}, {"grpc", "grpc"}, {"tcp", "tcp"}}) {
    const auto metrics = MetricsOf(SmallJob(3, 0, With(flags, {"--pipeline_link=" + asked})));
    ASSERT_THAT(metrics, SizeIs(3)) << asked;
    for (const proto::WorkerMetrics& rank : metrics) {
      EXPECT_EQ(rank.params_sha256(), expected) << asked;
      EXPECT_THAT(rank.stage_links(), AllOf(SizeIs(rank.stage() == 1 ? 2 : 1), Each(found)));
    }
  }
}

TEST(PipelineTest, RandomLayersAndRecomputedOnesHaveTheSameBits) {
  const std::string expected = OneProcess(With(SmallGpt(), {"--accumulate=4"}));
  const Flags flags = Stages(2, With(SmallGpt(), {"--micro_batches=4", "--split=2"}));
  EXPECT_THAT(Hashes(2, flags), Each(expected));
  EXPECT_THAT(Hashes(2, With(flags, {"--activation_checkpointing"})), Each(expected));
  EXPECT_THAT(Hashes(2, With(flags, {"--update=owner"})), Each(expected));
}

TEST(PipelineTest, FewerMicroBatchesThanStagesAndASmallLastOne) {
  // 50,000 samples are 6 batches, the last of 5,000, so steps of 4 and of 2.
  const Flags mlp = {"--model=mlp", "--batch_size=9000", "--epochs=1", "--lr=0.05"};
  const std::string uneven = OneProcess(With(mlp, {"--accumulate=4"}));
  EXPECT_THAT(Hashes(2, Stages(2, With(mlp, {"--micro_batches=4"}))), Each(uneven));
  const std::string one = OneProcess(SmallGpt());
  EXPECT_THAT(Hashes(3, Stages(3, SmallGpt())), Each(one));
}

TEST(PipelineTest, EvaluatesTheWholeModelWithItsRunningStatistics) {
  const Flags flags = With(
      SmallResNet(), {"--evaluate", "--batch_size=50", "--data=synthetic:8", "--stem=imagenet"});
  WorkerProcesses alone({With(flags, {"--mesh=data=1", "--micro_batches=2"})});
  const std::string expected = LastAfter(alone[0], "test loss ");
  EXPECT_THAT(expected, HasSubstr("accuracy"));
  WorkerProcesses job(
      std::vector<Flags>(2, Stages(2, With(flags, {"--micro_batches=2", "--split=4"}))));
  EXPECT_EQ(LastAfter(job[0], "test loss "), expected);
  EXPECT_EQ(LastAfter(job[1], "test loss "), "");
  // Which are those of the whole step, and not of one batch after the other.
  WorkerProcesses accumulated({With(flags, {"--accumulate=2"})});
  EXPECT_NE(LastAfter(accumulated[0], "test loss "), expected);
}

TEST(PipelineTest, ALostStageIsNamedOnAllOthers) {
  const Flags flags =
      Stages(3, With(SmallGpt(), {"--steps=100000000", "--micro_batches=2", "--timeout=60s"}));
  WorkerProcesses job({flags, flags, flags});
  EXPECT_NE(job[0].AwaitLine("step 10/"), "");
  job[2].Kill(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  for (int rank : {0, 1}) {
    EXPECT_EQ(job[rank].Finish(absl::Seconds(30)).code, 1);
    EXPECT_THAT(job[rank].err(), ElementsAre(HasSubstr("rank 2 at "))) << "rank " << rank;
  }
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(15));
}

// Of each worker.
std::vector<std::string> HashesWithServers(int workers, int servers, const Flags& flags) {
  std::vector<std::string> hashes;
  for (const proto::WorkerMetrics& metrics : MetricsOf(SmallJob(workers, servers, flags))) {
    hashes.push_back(metrics.params_sha256());
  }
  EXPECT_THAT(hashes, SizeIs(workers));
  return hashes;
}

class PipelineDataTest : public ::testing::TestWithParam<int> {};

// Buckets of some tensors and small chunks, so that stages begin in the midst of both.
TEST_P(PipelineDataTest, EndsWithTheBitsOfDataParallelismAlone) {
  const int replicas = GetParam();
  const Flags job =
      With(SmallGpt(), {"--bucket_bytes=20K", "--first_bucket_bytes=3K", "--chunk_bytes=448"});
  const std::vector<std::string> plain =
      HashesWithServers(replicas, 0, With(job, {"--topology=ring", "--accumulate=2"}));
  ASSERT_THAT(plain, SizeIs(replicas));
  const Flags flags = With(job, {"--micro_batches=2", "--split=2",
                                 absl::StrCat("--mesh=data=", replicas, ",pipeline=2")});
  for (const std::string update : {"--update=worker", "--update=owner"}) {
    EXPECT_THAT(HashesWithServers(2 * replicas, 0, With(flags, {"--topology=ring", update})),
                Each(plain[0]))
        << update;
    EXPECT_THAT(HashesWithServers(2 * replicas, 2, With(flags, {"--topology=ps", update})),
                Each(plain[0]))
        << update;
  }
  const Flags over_grpc = With(flags, {"--link=grpc"});
  EXPECT_THAT(HashesWithServers(2 * replicas, 0, With(over_grpc, {"--topology=ring"})),
              Each(plain[0]));
  for (const int servers : {0, 3}) {  // without any, the replicas of a stage are its servers
    EXPECT_THAT(HashesWithServers(2 * replicas, servers, With(over_grpc, {"--topology=ps"})),
                Each(plain[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, PipelineDataTest, ::testing::Values(2, 3));

TEST(PipelineTest, ALostReplicaOfAStageIsNamedByItsRankOfTheJob) {
  const Flags flags = With(SmallGpt(), {"--steps=100000000", "--mesh=data=2,pipeline=2",
                                        "--topology=ring", "--link=grpc", "--timeout=60s"});
  WorkerProcesses job({flags, flags, flags, flags});
  EXPECT_NE(job[0].AwaitLine("step 10/"), "");
  job[3].Kill(SIGKILL);
  for (int rank : {0, 1, 2}) {
    EXPECT_EQ(job[rank].Finish(absl::Seconds(30)).code, 1);
    EXPECT_THAT(job[rank].err(), ElementsAre(HasSubstr("rank 3 at "))) << "rank " << rank;
  }
}

// Each with a line that says what was wrong, before work starts.
TEST(PipelineTest, WhatStagesCannotDoIsRefused) {
  struct Case {
    Flags flags;
    std::string message;
  };
  const Flags staged = {"--model=mlp", "--mesh=pipeline=2"};
  for (const Case& c : std::vector<Case>{
           {{"--mesh=pipeline=3"}, "--mesh: expected sizes whose product is the world size, 2"},
           {{"--micro_batches=2"}, "--micro_batches: expected 1 without --mesh"},
           {{"--mesh=data=2"}, "--topology: expected ps or ring with several ranks along data"},
           {{"--topology=ring", "--mesh=data=2", "--split=4"},
            "--split: expected auto without stages (--mesh=pipeline=N, --model_parallel=N), "
            "found "},
           {{"--pipeline_schedule=gpipe"},
            "--pipeline_schedule: expected 1f1b without stages (--mesh=pipeline=N, "},
           {{"--tensor_link=shm"}, "--tensor_link: expected auto without slices"},
           {{"--pipeline_link=shm"},
            "--pipeline_link: expected auto without stages on several ranks"},
           {With(staged, {"--pipeline_link=gloo"}),
            "--pipeline_link: expected auto, grpc, tcp or shm"},
           {With(staged, {"--micro_batches=0"}), "--micro_batches: expected at least 1"},
           {With(staged, {"--micro_batches=2", "--accumulate=2"}), "--accumulate: expected 1 with"},
           {With(staged, {"--pipeline_schedule=x"}), "--pipeline_schedule: expected naive, gpipe"},
           {With(staged, {"--max_norm=1"}), "--max_norm: expected 0 with stages"},
           {With(staged, {"--ema_decay=0.9", "--evaluate"}), "--ema_decay: expected 0 with stages"},
           {With(staged, {"--checkpoint=/tmp/x"}), "--checkpoint: expected none with stages"},
           {With(staged, {"--resume=/tmp/x"}),
            "--resume: expected none with stages (--mesh), or --init_from for the weights alone, "
            "found"},
           {With(staged, {"--straggler=0:2"}), "--straggler: expected none with stages"},
           {With(staged, {"--trace=/tmp/x"}), "--trace: expected none with stages"}}) {
    WorkerProcesses job({c.flags}, /*world_size=*/2);
    EXPECT_EQ(job[0].Finish().code, 2) << c.message;
    EXPECT_THAT(job[0].err(), ElementsAre(HasSubstr(c.message)));
  }
}

TEST(PipelineTest, ACutThatTheModelDoesNotHaveIsRefusedOnAllRanks) {
  const Flags flags = {"--model=mlp", "--mesh=pipeline=2", "--split=9"};
  WorkerProcesses job({flags, flags});
  for (int rank : {0, 1}) {
    EXPECT_EQ(job[rank].Finish().code, rank == 0 ? 2 : 1);  // which is told of it
    EXPECT_THAT(job[rank].err(), ElementsAre(HasSubstr("--split: expected auto, or 1 of")));
  }
}

}  // namespace
}  // namespace gradsync
