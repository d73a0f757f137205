// What owners keep for all (--zero), by real processes: the bits of plain data parallelism, and the
// bytes on the wire. More rows, also of 4 workers, on backends alone: sharded_backends_test.cc.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/temporary_folder.h"
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

// Buckets of some tensors, several of which share each slot, with padding and cut tails.
Flags SmallGpt() {
  return {"--model=gpt",       "--gpt_width=12",         "--gpt_layers=3",
          "--gpt_heads=2",     "--gpt_context=8",        "--batch_size=2",
          "--steps=3",         "--optimizer=adam",       "--bucket_bytes=9K",
          "--chunk_bytes=448", "--first_bucket_bytes=1K"};
}

struct Ended {
  std::string hash;
  double tx_bytes = 0;  // of all workers in a step
  double rx_bytes = 0;
};

Ended RunJob(int workers, int servers, const Flags& flags) {
  const std::vector<proto::WorkerMetrics> metrics = MetricsOf(SmallJob(workers, servers, flags));
  Ended ended;
  EXPECT_THAT(metrics, SizeIs(workers)) << absl::StrCat(flags.back());
  for (const proto::WorkerMetrics& worker : metrics) {
    EXPECT_EQ(worker.params_sha256(), metrics[0].params_sha256());
    ended.hash = worker.params_sha256();
    ended.tx_bytes += worker.wire_tx_bytes_per_step();
    ended.rx_bytes += worker.wire_rx_bytes_per_step();
  }
  return ended;
}

struct Case {
  int workers;
  int servers;  // 0: a ring
  std::string link;
};

class ZeroTest : public ::testing::TestWithParam<Case> {};

TEST_P(ZeroTest, EndsWithTheBitsOfPlainDataParallelism) {
  const int workers = GetParam().workers;
  const int servers = GetParam().servers;
  const Ended plain = RunJob(workers, 0, With(SmallGpt(), {"--topology=ring", "--link=grpc"}));
  EXPECT_THAT(plain.hash, SizeIs(64));
  const Flags flags = With(SmallGpt(), {servers == 0 ? "--topology=ring" : "--topology=ps",
                                        "--link=" + GetParam().link});
  const Ended one = RunJob(workers, servers, With(flags, {"--zero=1"}));
  const Ended two = RunJob(workers, servers, With(flags, {"--zero=2"}));
  EXPECT_EQ(one.hash, plain.hash);
  EXPECT_EQ(two.hash, plain.hash);
  EXPECT_GT(two.rx_bytes, 0);
  EXPECT_EQ(two.tx_bytes, one.tx_bytes);
  EXPECT_EQ(two.rx_bytes, one.rx_bytes);
  const Ended three = RunJob(workers, servers, With(flags, {"--zero=3"}));
  EXPECT_EQ(three.hash, plain.hash);
  // Parameters come twice, less what is still there, and nothing is returned.
  EXPECT_GT(three.rx_bytes, one.rx_bytes);
  EXPECT_LT(three.rx_bytes, 2 * one.rx_bytes);
}

// A share of 3334 test images is two batches, one of 3333 is one.
Flags LargeBatches() { return {"--batch_size=3333", "--bucket_bytes=256K", "--steps=4"}; }

TEST(ZeroThreeTest, EvaluatesEveryTestSampleOnceWhateverTheShares) {
  const Flags flags = With(LargeBatches(), {"--evaluate"});
  const auto plain = MetricsOf(SmallJob(3, 0, With(flags, {"--topology=ring"})));
  const auto ring = MetricsOf(SmallJob(3, 0, With(flags, {"--topology=ring", "--zero=3"})));
  const auto servers = MetricsOf(SmallJob(3, 2, With(flags, {"--topology=ps", "--zero=3"})));
  ASSERT_THAT(plain, SizeIs(3));
  EXPECT_GT(plain[0].test_accuracy(), 0);
  for (const auto& metrics : {ring, servers}) {
    ASSERT_THAT(metrics, SizeIs(3));
    for (const proto::WorkerMetrics& worker : metrics) {
      EXPECT_EQ(worker.params_sha256(), plain[0].params_sha256());
      EXPECT_EQ(worker.test_accuracy(), plain[0].test_accuracy());
      EXPECT_EQ(worker.test_loss(), plain[0].test_loss());
    }
  }
}

TEST(ZeroThreeTest, GoesOnFromACheckpointOfPlainDataParallelismAndTheOtherWayRound) {
  const absl::StatusOr<TemporaryFolder> temporary = TemporaryFolder::Create("zero-test-");
  ASSERT_TRUE(temporary.ok()) << temporary.status();
  const auto job = [](const Flags& flags) {
    const auto metrics = MetricsOf(SmallJob(2, flags[0] == "--topology=ps" ? 2 : 0,
                                            With(LargeBatches(), With({"--evaluate"}, flags))));
    return metrics.empty() ? proto::WorkerMetrics() : metrics[0];
  };
  const proto::WorkerMetrics whole = job({"--topology=ring"});
  const Flags ways = {"--topology=ring --zero=0", "--topology=ring --zero=3",
                      "--topology=ps --zero=3"};
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string folder = absl::StrCat(temporary->path(), "/", i);
    const Flags way = absl::StrSplit(ways[i], ' ');
    const proto::WorkerMetrics half =
        job(With(way, {"--steps=2", "--checkpoint_every=2", "--checkpoint=" + folder}));
    EXPECT_EQ(half.checkpoints(), 1) << ways[i];
    for (const std::string& then : ways) {
      const proto::WorkerMetrics rest =
          job(With(absl::StrSplit(then, ' '), {"--resume=" + folder}));
      EXPECT_EQ(rest.first_step(), 3) << ways[i] << ", then " << then;
      EXPECT_EQ(rest.params_sha256(), whole.params_sha256()) << ways[i] << ", then " << then;
      EXPECT_EQ(rest.test_loss(), whole.test_loss()) << ways[i] << ", then " << then;
    }
  }
}

TEST(ShardTest, AlongShardItIsTheJobThatItIsAlongData) {
  const Flags ring = With(SmallGpt(), {"--topology=ring"});
  const Ended data = RunJob(4, 0, With(ring, {"--mesh=data=4", "--zero=3"}));
  const Ended shard = RunJob(4, 0, With(ring, {"--mesh=shard=4", "--zero=3"}));
  EXPECT_THAT(data.hash, SizeIs(64));
  EXPECT_EQ(shard.hash, data.hash);
  EXPECT_EQ(shard.tx_bytes, data.tx_bytes);
  const Flags servers = With(SmallGpt(), {"--topology=ps", "--zero=2"});
  EXPECT_EQ(RunJob(2, 2, With(servers, {"--mesh=shard=2"})).hash,
            RunJob(2, 2, With(servers, {"--mesh=data=2"})).hash);
  const Flags stages = With(ring, {"--zero=1", "--micro_batches=2"});
  EXPECT_EQ(RunJob(4, 0, With(stages, {"--mesh=pipeline=2,shard=2"})).hash,
            RunJob(4, 0, With(stages, {"--mesh=data=2,pipeline=2"})).hash);
  EXPECT_EQ(RunJob(4, 0, With(stages, {"--mesh=shard=2,tensor=2"})).hash,
            RunJob(4, 0, With(stages, {"--mesh=data=2,tensor=2"})).hash);
}

TEST(ZeroFlagTest, WhatDoesNotGoTogetherIsRefusedInOneLine) {
  for (const auto& [flags, words] : std::vector<std::pair<Flags, std::string>>{
           {{"--zero=2", "--accumulate=2"}, "--zero: expected 0 or 1 with --accumulate"},
           {{"--zero=3", "--topology=local"}, "--zero: expected 0 to 2 with --topology=local"},
           {{"--mesh=shard=2", "--world_size=2", "--topology=ring"},
            "--zero: expected 1 to 3 with shard=2 (--mesh), found \"0\""},
           {{"--mesh=shard=2", "--world_size=2", "--master=127.0.0.1:0", "--zero=1"},
            "--topology: expected ps or ring with several ranks along shard"},
           {{"--mesh=data=2,shard=2", "--world_size=4", "--topology=ring", "--zero=3"},
            "--mesh: expected data=1 with shard"},
           {{"--zero=4"}, "--zero: expected 0 to 3, found \"4\""}}) {
    TestProgram worker(With({"worker/worker"}, flags));
    EXPECT_EQ(worker.Finish(absl::Seconds(30)).code, 2);
    EXPECT_THAT(worker.err(), ElementsAre(HasSubstr(words)));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, ZeroTest, ::testing::Values(Case{2, 0, "grpc"}, Case{3, 2, "tcp"}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.workers,
                                               info.param.servers == 0 ? "Ring" : "Servers",
                                               info.param.link);
                         });

}  // namespace
}  // namespace gradsync
