#include "benchmarks/replay/replay_prediction.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

ReplayCase Case() {
  ReplayCase replay;
  replay.profile_name = "toy";
  replay.profile.set_model("toy");
  replay.profile.set_batch_size(32);
  replay.profile.set_forward_us(10000);
  replay.profile.set_backward_us(20000);
  replay.profile.set_update_us(1000);
  proto::ProfiledTensor& tensor = *replay.profile.add_tensors();
  tensor.set_name("weight");
  tensor.set_numel(1 << 20);
  tensor.set_ready_us(30000);
  replay.job.spec.topology = Topology::kRing;
  replay.job.spec.link = Link::kGrpc;
  replay.job.workers = 2;
  replay.plan.world_size = 2;
  replay.job.bandwidth = "1gbit";
  return replay;
}

double StepMs(const ReplayCase& replay) {
  const auto run = PredictReplay(replay, LinkConstants());
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() && run->has_value() ? (*run)->step_ms_p50() : 0;
}

// 4 MiB over two hosts' links of 1 Gbit/s take 36 ms, all of it after backward's 30.
TEST(ReplayPredictionTest, TheSimulatorIsAskedForTheCaseThatIsMeasured) {
  EXPECT_NEAR(StepMs(Case()), 67, 4);
  ReplayCase scaled = Case();
  scaled.compute_scale = 2;
  EXPECT_NEAR(StepMs(scaled) - StepMs(Case()), 31, 0.5);
  ReplayCase slower = Case();
  slower.job.bandwidth = "100mbit";
  EXPECT_GT(StepMs(slower), 5 * StepMs(Case()));
  ReplayCase ps = Case();
  ps.job.spec.topology = Topology::kPs;
  ps.job.placement = Placement::kDedicated;
  ps.job.servers = 1;
  EXPECT_GT(StepMs(ps), 1.3 * StepMs(Case()));  // the server's link carries both workers' bytes
}

TEST(ReplayPredictionTest, AStragglerSlowsItsRank) {
  ReplayCase straggling = Case();
  straggling.straggler = Straggler::Parse("1:3").value();
  EXPECT_NEAR(StepMs(straggling) - StepMs(Case()), 2 * 31, 2);
  const auto run = PredictReplay(straggling, LinkConstants());
  EXPECT_EQ((*run)->straggler(), "1:3");
  EXPECT_EQ((*run)->profile(), "toy");
}

// All workers are slow in half of the steps, not in the same ones: under asp a step takes as long
// as a worker's mean one, under bsp as the slowest one's.
TEST(ReplayPredictionTest, RandomStragglersAreSlowInTheStepsThatAreMeasured) {
  ReplayCase random = Case();
  random.job.bandwidth = "100gbit";
  random.job.spec.topology = Topology::kPs;
  random.job.spec.update = UpdateSite::kOwner;
  random.job.placement = Placement::kDedicated;
  random.job.servers = 1;
  random.steps = 43;
  random.warmup_steps = 3;
  random.straggler = Straggler::Parse("random:1:0.5:11").value();
  double mean = 0;
  double slowest = 0;
  for (int step = 4; step <= 43; ++step) {
    const double factors[] = {random.straggler.Factor(0, step), random.straggler.Factor(1, step)};
    mean += (factors[0] + factors[1]) / 80;
    slowest += std::max(factors[0], factors[1]) / 40;
  }
  ASSERT_GT(slowest, 1.2 * mean);
  const auto rate = [&](const std::string& consistency) {
    random.job.spec.consistency = *ParseConsistency(consistency);
    return (*PredictReplay(random, LinkConstants()))->steps_per_s();
  };
  EXPECT_NEAR(30e-3 * slowest * rate("bsp"), 1, 0.1);
  EXPECT_NEAR(30e-3 * mean * rate("asp"), 1, 0.15);
}

TEST(ReplayPredictionTest, ThereIsNoneWithoutANetwork) {
  ReplayCase here = Case();
  here.job.bandwidth = "";
  EXPECT_FALSE(PredictReplay(here, LinkConstants())->has_value());
}

}  // namespace
}  // namespace gradsync
