// What a worker's flags do, by real processes: learning rates step by step, workers that train by
// themselves, training that diverges, threads that compute.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/sanitizers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<double> RatesOf(const std::vector<std::string>& flags) {
  const auto metrics = MetricsOf(SmallJob(1, 0, With({"--steps=8", "--lr=0.01"}, flags)));
  if (metrics.empty()) return {};
  return std::vector<double>(metrics[0].lr().begin(), metrics[0].lr().end());
}

// --schedule=step was constant, without a word.
TEST(LearningRateTest, StepDropsAtItsMilestones) {
  EXPECT_THAT(RatesOf({"--schedule=step", "--lr_milestones=2,5"}),
              Pointwise(DoubleNear(1e-15), {.01, .01, .001, .001, .001, .0001, .0001, .0001}));
  EXPECT_THAT(RatesOf({"--schedule=step", "--lr_milestones=4", "--lr_gamma=0.5"}),
              Pointwise(DoubleNear(1e-15), {.01, .01, .01, .01, .005, .005, .005, .005}));
}

// --schedule=cosine was refused, whatever else was said.
TEST(LearningRateTest, CosineFallsFromTheEndOfTheWarmUpToTheEndOfTheJob) {
  // Half a cosine over 8 steps, and over the 4 that a warm-up of 4 leaves.
  EXPECT_THAT(
      RatesOf({"--schedule=cosine"}),
      Pointwise(DoubleNear(1e-12), {.01, .00961939766256, .00853553390593, .00691341716183, .005,
                                    .00308658283817, .00146446609407, .00038060233744}));
  EXPECT_THAT(RatesOf({"--schedule=cosine", "--lr_warmup_steps=4", "--lr_final=0.002"}),
              Pointwise(DoubleNear(1e-12),
                        {.0025, .005, .0075, .01, .01, .00882842712475, .006, .00317157287525}));
}

TEST(LearningRateTest, IsTheSameOnAllRanksAndMatters) {
  const auto train = [](const std::string& schedule) {
    return MetricsOf(SmallJob(2, 1, {"--topology=ps", "--update=owner", "--steps=6", schedule}));
  };
  const auto constant = train("--schedule=constant");
  const auto cosine = train("--schedule=cosine");
  ASSERT_EQ(constant.size(), 2u);
  ASSERT_EQ(cosine.size(), 2u);
  EXPECT_THAT(constant[0].lr(), Each(DoubleEq(0.01)));
  EXPECT_THAT(cosine[0].lr(), Pointwise(DoubleEq(), cosine[1].lr()));
  EXPECT_NE(constant[0].params_sha256(), cosine[0].params_sha256());
}

// How many times as long as the others' a slow worker's steps take: seconds on a free machine, and
// within the limit on one where a step takes twenty times as long.
constexpr const char* kSlow = kSanitized ? ":50" : ":200";
constexpr absl::Duration kSlowest = absl::Minutes(4);

// The first to end waited for the others no longer than --timeout, and failed.
TEST(LocalTopologyTest, WorkersEndEachByItself) {
  const std::vector<std::string> flags = {"--topology=local", "--model=mlp", "--batch_size=4",
                                          "--steps=6", absl::StrCat("--straggler=0", kSlow)};
  WorkerProcesses workers({flags, With(flags, {"--timeout=1s"})});
  EXPECT_EQ(workers[1].Finish(kSlowest).code, 0);
  EXPECT_THAT(workers[1].err(), ElementsAre());
  EXPECT_EQ(workers[0].Finish(kSlowest).code, 0);
  EXPECT_THAT(workers[0].out().back(), HasSubstr("params_sha256"));
}

TEST(LocalTopologyTest, TheStoreMayEndBeforeTheOthers) {
  const std::vector<std::string> flags = {
      "--topology=local", "--model=mlp",        "--batch_size=4",
      "--steps=6",        "--evaluate_every=3", absl::StrCat("--straggler=1", kSlow)};
  WorkerProcesses workers({flags, flags});
  EXPECT_EQ(workers[0].Finish(kSlowest).code, 0);
  EXPECT_EQ(workers[1].Finish(kSlowest).code, 0);
  EXPECT_THAT(workers[1].err(), ElementsAre());
}

struct Divergence {
  std::string model;
  std::string topology;
  int workers;
  int servers;
  std::vector<std::string> flags;
};

std::ostream& operator<<(std::ostream& out, const Divergence& d) {
  return out << d.model << " " << d.topology << " " << ::testing::PrintToString(d.flags);
}

class DivergenceTest : public ::testing::TestWithParam<Divergence> {};

// Training ended with exit code 0 and parameters that were NaN.
TEST_P(DivergenceTest, EndsTheJobAndNamesStepAndRank) {
  const Divergence& d = GetParam();
  LocalJobOptions options =
      SmallJob(d.workers, d.servers,
               With({"--topology=" + d.topology, "--model=" + d.model, "--lr=1e30", "--steps=12",
                     "--momentum=0", "--weight_decay=0"},
                    d.flags));
  std::map<std::string, std::vector<std::string>> errors;
  options.on_line = [&errors](absl::string_view process, absl::string_view line, bool is_stderr) {
    if (is_stderr) errors[std::string(process)].push_back(std::string(line));
  };
  const auto result = RunLocalJob(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 1) << DescribeFailure(*result);
  for (int rank = 0; rank < d.workers; ++rank) {
    EXPECT_THAT(errors[absl::StrCat("worker ", rank)],
                ElementsAre(AllOf(HasSubstr("step "), HasSubstr(" of 12, rank "),
                                  HasSubstr("expected"), HasSubstr("finite"), HasSubstr("--lr"))))
        << "of rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, DivergenceTest,
    ::testing::Values(Divergence{"mlp", "local", 1, 0, {}},
                      Divergence{"resnet18", "local", 1, 0, {"--stem=cifar"}},
                      Divergence{"mlp", "ring", 2, 0, {}},
                      Divergence{"mlp", "ring", 2, 0, {"--link=grpc", "--update=owner"}},
                      Divergence{"resnet18", "ring", 2, 0, {"--stem=cifar"}},
                      Divergence{"mlp", "ps", 2, 1, {}},
                      Divergence{"mlp", "ps", 2, 1, {"--link=grpc", "--update=owner"}},
                      Divergence{"mlp", "ps", 2, 1, {"--update=owner", "--consistency=ssp:2"}},
                      Divergence{"resnet18", "ps", 2, 1, {"--link=grpc", "--stem=cifar"}}));

// Only the last step's update is not finite, which no loss sees.
TEST(DivergenceTest, OfTheLastUpdateIsFoundInTheParameters) {
  WorkerProcesses workers({{"--model=mlp", "--batch_size=4", "--steps=1", "--lr=1e300"}});
  EXPECT_EQ(workers[0].Finish().code, 1);
  EXPECT_THAT(workers[0].err(),
              ElementsAre(AllOf(HasSubstr("step 1 of 1, rank 0"), HasSubstr("parameters"))));
}

// Processor time of each thread of a process, in ticks, the most first.
std::vector<int64_t> ThreadTicks(int pid) {
  std::vector<int64_t> ticks;
  std::error_code ignored;  // the process may end meanwhile
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), ignored)) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    // The name, which may hold spaces, is in parentheses; user and system time are the 12th and
    // 13th fields after it.
    const std::vector<std::string> fields =
        absl::StrSplit(stat.substr(stat.rfind(')') + 1), ' ', absl::SkipEmpty());
    if (fields.size() > 12) ticks.push_back(std::stoll(fields[11]) + std::stoll(fields[12]));
  }
  std::sort(ticks.rbegin(), ticks.rend());
  return ticks;
}

// OpenBLAS took all cores for each matrix product, whatever --threads was.
TEST(ThreadsTest, OneThreadComputes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer slows down our loader, but not LibTorch's products";
  // Batches are made by several threads, so that none of them has much to do.
  LocalJobOptions options = SmallJob(
      1, 0,
      {"--threads=1", "--loader_threads=8", "--batch_size=256", "--steps=1000", "--log_every=10"});
  int pid = 0;
  std::vector<int64_t> ticks;
  options.on_start = [&pid](absl::string_view, int started) { pid = started; };
  options.on_line = [&](absl::string_view, absl::string_view line, bool) {
    if (!absl::StartsWith(line, "step ")) return;
    std::vector<int64_t> now = ThreadTicks(pid);
    if (!now.empty()) ticks = std::move(now);
  };
  MetricsOf(options);
  ASSERT_GE(ticks.size(), 2u);
  ASSERT_GE(ticks[0], 80) << "too short to say anything";
  // A twentieth or so each for batches; the second thread of OpenBLAS had a fifth or more.
  EXPECT_LT(ticks[1], ticks[0] / 6) << ::testing::PrintToString(ticks);
}

TEST(SizesTest, AreBytesOrHaveUnits) {
  const auto largest = [](const std::vector<std::string>& flags) {
    const auto metrics = MetricsOf(SmallJob(1, 0, With({"--steps=2"}, flags)));
    return metrics.empty() ? 0 : metrics[0].bucket_bytes();
  };
  const double small = largest({"--bucket_bytes=4KiB", "--first_bucket_bytes=4KiB"});
  EXPECT_GT(small, 0);
  EXPECT_EQ(small, largest({"--bucket_bytes=4096", "--first_bucket_bytes=4096"}));
  EXPECT_LT(small, largest({"--bucket_bytes=25MiB", "--first_bucket_bytes=25MiB"}));
}

}  // namespace
}  // namespace gradsync
