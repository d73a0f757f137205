// The whole job in other types and memory formats, with peers. A rank is a thread.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/cpu_for_test.h"
#include "core/group/key_value_store.h"
#include "core/group/side_channel.h"
#include "core/links/in_process_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/ring_group.h"
#include "worker/train/trainer.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 2;

TrainerOptions Mlp() {
  TrainerOptions options;
  options.model.name = "mlp";
  options.batch_size = 32;
  options.steps = 60;
  options.recipe.base = 0.01;
  options.optimizer.groups.emplace_back();
  options.optimizer.groups[0].momentum = 0.9;
  options.plan.bucket_bytes = 100000;
  return options;
}

using CreateSync = std::function<std::unique_ptr<GradientSync>(int rank)>;
using Results = std::vector<absl::StatusOr<TrainingResult>>;

Results Train(const CreateSync& create, const std::function<TrainerOptions(int)>& options) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  Results results(kWorkers, absl::UnknownError("not run"));
  RunRanks(kWorkers, [&](int rank) {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = kWorkers;
    group.run_id = "precision";
    group.store = store;
    SideChannel side_channel(group, "trainer");
    const std::unique_ptr<GradientSync> sync = create(rank);
    auto trainer = Trainer::Create(options(rank), rank, kWorkers);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const absl::Status bound = (*trainer)->Bind(sync.get(), &side_channel);
    results[rank] = bound.ok() ? (*trainer)->Run([](const StepReport&) {})
                               : absl::StatusOr<TrainingResult>(bound);
  });
  return results;
}

RingOptions OverRing() {
  RingOptions options;
  options.link = NewInProcessLink();
  return options;
}

Results TrainRing(const TrainerOptions& options) {
  const RingGroup ring(kWorkers, OverRing());
  return Train([&](int rank) { return ring.Create(rank); }, [&](int) { return options; });
}

Results TrainPs(const TrainerOptions& options) {
  const PsGroup ps(NewInProcessLink(), kWorkers, /*servers=*/2, PsOptions());
  return Train([&](int rank) { return ps.Worker(rank); }, [&](int) { return options; });
}

// All ranks of both topologies must end with the same bits; returns rank 0's result.
TrainingResult TrainBoth(const TrainerOptions& options) {
  const Results ring = TrainRing(options);
  const Results ps = TrainPs(options);
  for (const Results* results : {&ring, &ps}) {
    for (const auto& result : *results) {
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) return TrainingResult();
      EXPECT_EQ(result->params_sha256, (*ring[0]).params_sha256);
    }
  }
  return *ring[0];
}

// Of the first steps: later ones amplify how these rounded.
void ExpectLossesNear(const TrainingResult& found, const TrainingResult& expected,
                      double tolerance) {
  for (int step : {0, 1, 2}) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance) << "step " << step + 1;
  }
}

TEST(PrecisionTest, Bf16LearnsAsFp32AndTopologiesEndWithTheSameBits) {
  TrainerOptions options = Mlp();
  const TrainingResult fp32 = TrainBoth(options);
  options.compute.precision = Precision::kBf16;
  const TrainingResult bf16 = TrainBoth(options);
  EXPECT_NE(bf16.params_sha256, fp32.params_sha256);
  ExpectLossesNear(bf16, fp32, 0.02);
  EXPECT_LT(fp32.final_loss, 0.8 * fp32.first_loss);
  EXPECT_NEAR(bf16.final_loss, fp32.final_loss, 0.05 * fp32.first_loss);
}

TEST(PrecisionTest, AResNetInBf16OrChannelsLastEndsWithTheSameBitsUnderBothTopologies) {
  TrainerOptions options = Mlp();
  options.model.name = "resnet18";
  options.batch_size = 8;
  options.steps = 4;
  options.plan = PlanOptions();
  const Results plain = TrainRing(options);
  ASSERT_TRUE(plain[0].ok()) << plain[0].status();
  options.compute.channels_last = true;
  ExpectLossesNear(TrainBoth(options), *plain[0], !HasAvx512() ? 0.1 : 0.01);
  options.compute.precision = Precision::kBf16;
  const TrainingResult bf16 = TrainBoth(options);
  EXPECT_NEAR(bf16.losses[0], plain[0]->losses[0], 0.1);
  for (double loss : bf16.losses) EXPECT_LT(loss, 2 * bf16.losses[0]);
}

// Scaling by powers of two does not round, so only what it skips may differ.
TEST(PrecisionTest, ALossScaleChangesNoBit) {
  TrainerOptions options = Mlp();
  const TrainingResult plain = TrainBoth(options);
  options.loss_scaler = LossScalerOptions();
  options.loss_scaler->growth_interval = 10;
  const TrainingResult scaled = TrainBoth(options);
  EXPECT_EQ(scaled.skipped_steps, 0);
  EXPECT_EQ(scaled.loss_scale, 65536 * 64);
  EXPECT_EQ(scaled.params_sha256, plain.params_sha256);
  EXPECT_EQ(scaled.losses, plain.losses);
}

TEST(PrecisionTest, WhereGradientsOverflowAllRanksSkipTheSameSteps) {
  TrainerOptions options = Mlp();
  options.loss_scaler = LossScalerOptions();
  options.loss_scaler->initial = 0x1p132;  // which no float holds
  const TrainingResult result = TrainBoth(options);
  EXPECT_GE(result.skipped_steps, 5);
  EXPECT_LT(result.skipped_steps, options.steps / 2);
  EXPECT_EQ(result.loss_scale, std::ldexp(1.0, 132 - static_cast<int>(result.skipped_steps)));
  for (double loss : result.losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_LT(result.final_loss, 0.8 * result.first_loss);
}

TEST(PrecisionTest, RanksThatDifferAreRefused) {
  const auto refused = [](const std::function<void(TrainerOptions*)>& change,
                          const std::vector<std::string>& words) {
    const RingGroup ring(kWorkers, OverRing());
    const Results results = Train([&](int rank) { return ring.Create(rank); },
                                  [&](int rank) {
                                    TrainerOptions options = Mlp();
                                    options.model.name = "resnet18";
                                    if (rank == 1) change(&options);
                                    return options;
                                  });
    for (const auto& result : results) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition) << result.status();
      for (const std::string& word : words) {
        EXPECT_THAT(std::string(result.status().message()), HasSubstr(word));
      }
    }
  };
  refused([](TrainerOptions* o) { o->compute.channels_last = true; },
          {"layer4.1.conv2.weight", "strides [4608,9,3,1]", "strides [4608,1,1536,512]"});
  refused([](TrainerOptions* o) { o->compute.precision = Precision::kBf16; },
          {"rank 0 has --precision=fp32", "rank 1 has --precision=bf16"});
}

}  // namespace
}  // namespace gradsync
