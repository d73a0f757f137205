// Recipes by real processes: training accuracy, accumulation, schedules, what has no weight decay,
// synchronised BatchNorm, averages of the weights. Each under both topologies, with equal bits.

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;

using Metrics = std::vector<proto::WorkerMetrics>;

// Rank 0's of a job of one worker.
proto::WorkerMetrics Alone(const std::vector<std::string>& flags) {
  const Metrics all = MetricsOf(SmallJob(1, 0, flags));
  return all.empty() ? proto::WorkerMetrics() : all[0];
}

// Two workers under either topology, with updates at workers and at owners. All end with the same
// bits, which are those of the result.
std::string HashUnderAllTopologies(const std::vector<std::string>& flags) {
  std::string hash;
  for (const std::string update : {"--update=worker", "--update=owner"}) {
    for (const std::string topology : {"ps", "ring"}) {
      const Metrics all = MetricsOf(
          SmallJob(2, topology == "ps" ? 1 : 0, With(flags, {"--topology=" + topology, update})));
      if (all.empty()) return "";
      if (hash.empty()) hash = all[0].params_sha256();
      EXPECT_EQ(all[0].params_sha256(), hash) << topology << " " << update;
    }
  }
  return hash;
}

std::vector<double> RatesOf(const std::vector<std::string>& flags) {
  const proto::WorkerMetrics metrics = Alone(flags);
  return std::vector<double>(metrics.lr().begin(), metrics.lr().end());
}

TEST(TrainingAccuracyTest, IsOfEachEpochHereAndOverAllRanks) {
  std::vector<std::string> lines;
  LocalJobOptions job = SmallJob(2, 0, {"--topology=ring", "--batch_size=5000", "--steps=8"});
  job.on_line = [&lines](absl::string_view, absl::string_view line, bool) {
    if (absl::StartsWith(line, "epoch ")) lines.push_back(std::string(line));
  };
  const Metrics ranks = MetricsOf(job);
  ASSERT_EQ(ranks.size(), 2u);
  // An epoch has 5 steps of 2 times 5,000 samples; the second one stays in its midst.
  ASSERT_EQ(ranks[0].epochs_size(), 2);
  for (int e : {0, 1}) {
    const proto::EpochPoint &zero = ranks[0].epochs(e), &one = ranks[1].epochs(e);
    EXPECT_EQ(zero.epoch(), e + 1);
    EXPECT_EQ(zero.steps(), e == 0 ? 5 : 3);
    EXPECT_EQ(zero.samples(), 5000 * zero.steps());
    EXPECT_NE(zero.accuracy(), one.accuracy());
    EXPECT_NEAR(zero.global_accuracy(), (zero.accuracy() + one.accuracy()) / 2, 1e-12);
    EXPECT_NEAR(zero.global_loss(), (zero.loss() + one.loss()) / 2, 1e-12);
    EXPECT_EQ(zero.global_accuracy(), one.global_accuracy());
    double loss = 0;
    for (int s = 0; s < zero.steps(); ++s) loss += ranks[0].loss(5 * e + s) / zero.steps();
    EXPECT_NEAR(zero.loss(), loss, 1e-9);
  }
  // Guessing gives a tenth, and the MLP learns.
  EXPECT_GT(ranks[0].epochs(0).accuracy(), 0.05);
  EXPECT_GT(ranks[0].epochs(1).accuracy(), ranks[0].epochs(0).accuracy());
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("epoch 1 of rank 0: loss "), HasSubstr("5 steps")),
                                 AllOf(HasSubstr("epoch 2 of rank 0: loss "), HasSubstr("3 steps")),
                                 HasSubstr("epoch 2 of all ranks: loss ")));
}

TEST(AccumulationTest, TakesTheStepsOfALargerBatch) {
  const proto::WorkerMetrics large = Alone({"--batch_size=24", "--steps=6"});
  const proto::WorkerMetrics small = Alone({"--batch_size=8", "--accumulate=3", "--steps=6"});
  EXPECT_THAT(small.loss(), Pointwise(DoubleNear(1e-5), large.loss()));
  EXPECT_EQ(small.epochs(0).accuracy(), large.epochs(0).accuracy());
  EXPECT_EQ(small.epochs(0).samples(), 6 * 24);
}

TEST(AccumulationTest, AnEpochsLastStepTakesWhatIsLeft) {
  // 50,000 samples are 13 batches, the last of 2,000; every fifth step takes one batch.
  const proto::WorkerMetrics metrics = Alone({"--batch_size=4000", "--accumulate=3", "--epochs=2",
                                              "--lr_milestones=1e", "--schedule=step"});
  EXPECT_EQ(metrics.loss_size(), 10);
  ASSERT_EQ(metrics.epochs_size(), 2);
  EXPECT_EQ(metrics.epochs(0).steps(), 5);
  EXPECT_EQ(metrics.epochs(0).samples(), 50000);
  EXPECT_EQ(metrics.epochs(1).samples(), 50000);
  EXPECT_GT(metrics.lr(4), 5 * metrics.lr(5));
}

TEST(AccumulationTest, HasTheSameBitsUnderAllTopologies) {
  const std::string three = HashUnderAllTopologies({"--steps=5", "--accumulate=3"});
  EXPECT_NE(three,
            MetricsOf(SmallJob(2, 0, {"--steps=5", "--topology=ring"})).at(0).params_sha256());
  const Metrics slow = MetricsOf(
      SmallJob(2, 0, {"--steps=5", "--accumulate=3", "--topology=ring", "--straggler=1:3"}));
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(three, slow[0].params_sha256());
}

TEST(LearningRateTest, PolynomialsAndWarmUpsFollowTheirFlags) {
  EXPECT_THAT(RatesOf({"--steps=4", "--lr=0.16", "--schedule=poly", "--lr_power=2"}),
              Pointwise(DoubleNear(1e-15), {.16, .09, .04, .01}));
  EXPECT_THAT(RatesOf({"--steps=4", "--lr=0.1", "--lr_warmup=2", "--lr_warmup_start=0.2"}),
              Pointwise(DoubleNear(1e-15), {.02, .06, .1, .1}));
  // An epoch has 5 steps.
  EXPECT_THAT(RatesOf({"--steps=6", "--batch_size=10000", "--lr=0.1", "--lr_warmup=1e"}),
              Pointwise(DoubleNear(1e-15), {.02, .04, .06, .08, .1, .1}));
}

TEST(LearningRateTest, ScalesWithTheBatchOfAllWorkersAndMicroBatches) {
  const auto rate = [](const std::vector<std::string>& flags) {
    const Metrics all = MetricsOf(SmallJob(
        2, 0, With({"--topology=ring", "--steps=1", "--lr=0.1", "--accumulate=2"}, flags)));
    return all.empty() ? 0 : all[0].lr(0);
  };
  EXPECT_DOUBLE_EQ(rate({"--lr_scaling=linear", "--lr_reference_batch=4"}), 0.4);
  EXPECT_DOUBLE_EQ(rate({"--lr_scaling=sqrt"}), 0.1 * 0.25);
  EXPECT_DOUBLE_EQ(rate({}), 0.1);
}

TEST(WeightDecayTest, SparesWhatIsNamedUnderAllTopologies) {
  const std::vector<std::string> flags = {"--steps=4", "--weight_decay=0.5"};
  const std::string spared = HashUnderAllTopologies(With(flags, {"--no_weight_decay=bias"}));
  EXPECT_NE(spared,
            MetricsOf(SmallJob(2, 0, With(flags, {"--topology=ring"}))).at(0).params_sha256());
  // Whoever names everything has no decay at all.
  const proto::WorkerMetrics none = Alone({"--steps=4", "--weight_decay=0"});
  const proto::WorkerMetrics all = Alone(With(flags, {"--no_weight_decay=*.weight,vectors"}));
  EXPECT_EQ(all.params_sha256(), none.params_sha256());
}

// Adam and AdamW had SGD's default, a decay that PyTorch's users do not expect.
TEST(WeightDecayTest, HasTheDefaultOfEachOptimizerWhereNobodySetsIt) {
  const auto hash = [](const std::vector<std::string>& flags) {
    return Alone(With({"--steps=4"}, flags)).params_sha256();
  };
  for (const auto& [optimizer, decay] :
       {std::make_pair("sgd", "0.0005"), std::make_pair("adam", "0"),
        std::make_pair("adamw", "0.01")}) {
    const std::string chosen = absl::StrCat("--optimizer=", optimizer);
    const std::string by_default = hash({chosen});
    EXPECT_EQ(by_default, hash({chosen, absl::StrCat("--weight_decay=", decay)})) << optimizer;
    EXPECT_NE(by_default, hash({chosen, "--weight_decay=0.3"})) << optimizer;
    // The record has it, and ranks with and without the flag are the same job.
    bool found = false;
    const proto::WorkerMetrics metrics = Alone({"--steps=1", chosen});
    for (const proto::FlagValue& flag : metrics.flags()) {
      if (flag.name() != "weight_decay") continue;
      found = true;
      EXPECT_EQ(flag.origin(), "default");
      EXPECT_EQ(flag.value(), decay);
    }
    EXPECT_TRUE(found);
  }
}

const std::vector<std::string>& SmallResNet() {
  static const auto* const flags =
      new std::vector<std::string>{"--model=resnet18", "--batch_size=2", "--steps=2"};
  return *flags;
}

TEST(SyncBatchNormTest, HasTheSameBitsUnderAllTopologies) {
  const std::string synchronised =
      HashUnderAllTopologies(With(SmallResNet(), {"--sync_batchnorm", "--accumulate=2"}));
  const Metrics apart =
      MetricsOf(SmallJob(2, 0, With(SmallResNet(), {"--topology=ring", "--accumulate=2"})));
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_NE(synchronised, apart[0].params_sha256());
}

TEST(SyncBatchNormTest, MeetsTwicePerLayerAndBatch) {
  const Metrics all =
      MetricsOf(SmallJob(2, 0, With(SmallResNet(), {"--topology=ring", "--sync_batchnorm"})));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].moment_exchanges(), 2 * 20 * 2);
  EXPECT_GT(all[1].moment_wait_seconds(), 0);
}

TEST(SyncBatchNormTest, OfOneWorkerIsBatchNorm) {
  const proto::WorkerMetrics synchronised = Alone(With(SmallResNet(), {"--sync_batchnorm"}));
  EXPECT_EQ(synchronised.params_sha256(), Alone(SmallResNet()).params_sha256());
  EXPECT_EQ(synchronised.moment_exchanges(), 0);
}

// Rank 0 waits for moments most of the time, for the other computes longer.
TEST(SyncBatchNormTest, ALostPeerEndsTheWaitAndIsNamed) {
  const std::vector<std::string> flags =
      With(SmallResNet(), {"--topology=ring", "--link=grpc", "--sync_batchnorm", "--steps=100000",
                           "--timeout=60s", "--log_every=1", "--straggler=1:3"});
  WorkerProcesses workers({flags, flags});
  workers[0].AwaitLine("step 2/");
  workers[1].Kill(SIGKILL);
  EXPECT_EQ(workers[0].Finish(absl::Seconds(20)).code, 1);
  EXPECT_THAT(workers[0].err(),
              ElementsAre(AllOf(HasSubstr("rank 1"), Not(HasSubstr("LibTorch")))));
}

TEST(WeightAverageTest, IsEvaluatedBesideTheWeightsAndTheSameUnderAllTopologies) {
  const std::vector<std::string> flags = {"--steps=20", "--evaluate", "--evaluate_every=20",
                                          "--ema_decay=0.9", "--topology=ring"};
  std::vector<std::string> lines;
  LocalJobOptions job = SmallJob(2, 0, flags);
  job.on_line = [&lines](absl::string_view, absl::string_view line, bool) {
    if (absl::StartsWith(line, "test loss")) lines.push_back(std::string(line));
  };
  const Metrics ring = MetricsOf(job);
  const Metrics ps = MetricsOf(SmallJob(2, 1, With(flags, {"--topology=ps", "--update=owner"})));
  const Metrics plain = MetricsOf(SmallJob(2, 0, With(flags, {"--ema_decay=0"})));
  ASSERT_EQ(ring.size(), 2u);
  ASSERT_EQ(ps.size(), 2u);
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_THAT(lines,
              ElementsAre(HasSubstr("without averaging the weights"), Not(HasSubstr("averaging"))));
  EXPECT_NE(ring[0].test_loss(), ring[0].weights_test_loss());
  EXPECT_EQ(ring[0].weights_test_loss(), plain[0].test_loss());
  EXPECT_EQ(ring[0].params_sha256(), plain[0].params_sha256());
  EXPECT_EQ(ring[0].test_loss(), ring[1].test_loss());
  EXPECT_EQ(ring[0].test_loss(), ps[0].test_loss());
  ASSERT_EQ(ring[0].accuracy_curve_size(), 1);
  EXPECT_EQ(ring[0].accuracy_curve(0).accuracy(), ring[0].test_accuracy());
}

}  // namespace
}  // namespace gradsync
