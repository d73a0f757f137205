// What owners keep for all (--zero), by real processes: the bits of plain data parallelism, and the
// bytes on the wire. More rows, also of 4 workers, on backends alone: sharded_backends_test.cc.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_metrics.h"
#include "tests/worker_processes.h"
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

TEST(ZeroFlagTest, WhatDoesNotGoTogetherIsRefusedInOneLine) {
  for (const auto& [flags, words] : std::vector<std::pair<Flags, std::string>>{
           {{"--zero=2", "--accumulate=2"}, "--zero: expected 0 or 1 with --accumulate"},
           {{"--zero=3", "--topology=local"}, "--zero: expected 0 to 2 with --topology=local"},
           {{"--zero=4"}, "--zero: expected 0 to 3, found \"4\""}}) {
    TestProgram worker(With({"worker/worker"}, flags));
    EXPECT_EQ(worker.Finish(absl::Seconds(30)).code, 2);
    EXPECT_THAT(worker.err(), ElementsAre(HasSubstr(words)));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, ZeroTest, ::testing::Values(Case{2, 0, "grpc"}, Case{3, 2, "grpc"}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.workers,
                                               info.param.servers == 0 ? "Ring" : "Servers",
                                               info.param.link);
                         });

}  // namespace
}  // namespace gradsync
