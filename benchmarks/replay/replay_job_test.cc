#include "benchmarks/replay/replay_job.h"

#include <algorithm>

#include "benchmarks/profiles/step_profile.h"
#include "core/base/straggler.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

ReplayCase Case() {
  ReplayCase replay;
  replay.profile_name = "toy";
  replay.spec.set_compute_scale(1);
  replay.spec.set_bucket_bytes(25 << 20);
  replay.spec.set_first_bucket_bytes(1 << 20);
  *replay.spec.mutable_profile() =
      ParseStepProfile(R"({"model": "toy", "batch_size": 32, "forward_us": 10000,
                           "backward_us": 20000, "update_us": 1000,
                           "tensors": [{"name": "weight", "numel": 1048576, "ready_us": 30000}]})",
                       "profile")
          .value();
  replay.job.spec.topology = Topology::kRing;
  replay.job.spec.link = Link::kGrpc;
  replay.job.workers = 2;
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
  scaled.spec.set_compute_scale(2);
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
  straggling.spec.set_straggler("1:3");
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
  random.spec.set_steps(40);
  random.spec.set_warmup_steps(3);
  random.spec.set_straggler("random:1:0.5:11");
  const Straggler straggler = Straggler::Parse(random.spec.straggler()).value();
  double mean = 0;
  double slowest = 0;
  for (int step = 4; step <= 43; ++step) {
    const double factors[] = {straggler.Factor(0, step), straggler.Factor(1, step)};
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
