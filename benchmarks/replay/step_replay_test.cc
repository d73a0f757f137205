#include "benchmarks/replay/step_replay.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "benchmarks/profiles/step_profile.h"
#include "core/base/deadline.h"
#include "core/base/straggler.h"
#include "core/sync/buckets.h"
#include "core/sync/local_sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SimulatedClock : public ReplayClock {
 public:
  double Now() override { return now_; }
  void SleepUntil(double us) override { now_ = std::max(now_, us); }

 private:
  double now_ = 1e6;
};

// A backend whose buckets take `exchange_us` each, one after the other, on a simulated clock.
class SimulatedSync : public GradientSync, public SyncDriver {
 public:
  struct Launched {
    int64_t step;
    int bucket;
    double at;
  };

  static std::shared_ptr<SimulatedSync> Create(ReplayClock* clock, double exchange_us) {
    std::shared_ptr<SimulatedSync> sync(new SimulatedSync(clock, exchange_us));
    sync->self_ = sync;
    return sync;
  }

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline) override {
    return AllocateBuckets(plan);
  }
  absl::Status BroadcastParameters(Deadline) override { return absl::OkStatus(); }
  SyncHandle Launch(const StepOptions& step, int bucket) override {
    launched.push_back({step.step, bucket, clock_->Now()});
    free_at_ = std::max(free_at_, clock_->Now()) + exchange_us_;
    open_.push_back({free_at_, SyncPromise("bucket", self_)});
    return open_.back().second.handle();
  }
  UpdateSite update_site() const override { return UpdateSite::kWorker; }
  SyncIdentity identity() const override { return {Backend::kLocal}; }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline) override {
    return OptimizerState();
  }
  absl::Status ImportOptimizerState(const OptimizerState&, Deadline) override {
    return absl::OkStatus();
  }
  absl::StatusOr<RankState> ExportRankState() override { return RankState(); }
  absl::Status ImportRankState(const RankState&) override { return status(); }
  absl::Status Settle(Deadline) override { return status(); }
  absl::Status status() const override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}
  absl::Status Shutdown(Deadline) override { return absl::OkStatus(); }
  WireStats wire_stats() const override { return {}; }

  void Drive(absl::FunctionRef<bool()> done, Deadline) override {
    while (!done()) {
      clock_->SleepUntil(open_.front().first);
      open_.front().second.Resolve(absl::OkStatus());
      open_.pop_front();
    }
  }

  std::vector<Launched> launched;

 private:
  SimulatedSync(ReplayClock* clock, double exchange_us)
      : clock_(clock), exchange_us_(exchange_us) {}

  ReplayClock* const clock_;
  const double exchange_us_;
  double free_at_ = 0;
  std::weak_ptr<SimulatedSync> self_;
  std::deque<std::pair<double, SyncPromise>> open_;
};

// Three buckets of 64 bytes, ready at 200, 300 and 400 us of a step of 100 + 350 + 30 us.
proto::StepProfile Profile() {
  return ParseStepProfile(R"({"model": "toy", "batch_size": 8, "threads": 1, "forward_us": 100,
                              "backward_us": 350, "update_us": 30,
                              "tensors": [{"name": "a", "numel": 16, "ready_us": 200},
                                          {"name": "b", "numel": 16, "ready_us": 300},
                                          {"name": "c", "numel": 16, "ready_us": 400}]})",
                          "profile")
      .value();
}

Plan PlanOf(const proto::StepProfile& profile) {
  PlanOptions options;
  options.bucket_bytes = options.first_bucket_bytes = 64;
  return ProfilePlan(profile, options).value();
}

struct Outcome {
  absl::StatusOr<proto::WorkerMetrics> metrics = absl::UnknownError("not run");
  std::vector<SimulatedSync::Launched> launched;
  int starts = 0;
};

Outcome Replay(const ReplayOptions& options, double exchange_us, BucketSlots slots = {}) {
  const Plan plan = PlanOf(options.spec.profile()).WithSlots(slots).value();
  SimulatedClock clock;
  const auto sync = SimulatedSync::Create(&clock, exchange_us);
  Outcome outcome;
  const auto start = [&] {
    ++outcome.starts;
    return absl::OkStatus();
  };
  outcome.metrics = ReplaySteps(options, plan, start, &clock, sync.get());
  outcome.launched = sync->launched;
  return outcome;
}

ReplayOptions Options(int64_t warmup, int64_t steps) {
  ReplayOptions options;
  *options.spec.mutable_profile() = Profile();
  options.spec.set_compute_scale(1);
  options.spec.set_warmup_steps(warmup);
  options.spec.set_steps(steps);
  return options;
}

// Times of a step's launches since its first.
std::vector<double> Gaps(const Outcome& outcome, int64_t step) {
  std::vector<double> times;
  for (const auto& launched : outcome.launched) {
    if (launched.step == step) times.push_back(launched.at);
  }
  const double first = times.empty() ? 0 : times[0];
  for (double& time : times) time -= first;
  return times;
}

TEST(StepReplayTest, EachBucketIsLaunchedAtItsTimeAndInOrder) {
  const Outcome outcome = Replay(Options(2, 2), 10);
  ASSERT_TRUE(outcome.metrics.ok()) << outcome.metrics.status();
  ASSERT_EQ(outcome.launched.size(), 12u);
  for (size_t i = 0; i < outcome.launched.size(); ++i) {
    EXPECT_EQ(outcome.launched[i].bucket, static_cast<int>(i % 3));
    EXPECT_EQ(outcome.launched[i].step, static_cast<int64_t>(i / 3 + 1));
  }
  for (int64_t step : {2, 3, 4}) EXPECT_THAT(Gaps(outcome, step), ElementsAre(0, 100, 200));
  EXPECT_THAT(outcome.metrics->late_ms(), ElementsAre(0, 0));
  EXPECT_EQ(outcome.starts, 2);
}

TEST(StepReplayTest, AnExchangeThatBackwardHidesCostsOnlyTheUpdate) {
  const Outcome outcome = Replay(Options(1, 2), 10);
  ASSERT_TRUE(outcome.metrics.ok()) << outcome.metrics.status();
  EXPECT_THAT(outcome.metrics->step_ms(),
              ElementsAre(DoubleNear(0.48, 1e-6), DoubleNear(0.48, 1e-6)));
  EXPECT_NEAR(outcome.metrics->forward_ms(0), 0.1, 1e-6);
  EXPECT_NEAR(outcome.metrics->backward_ms(0), 0.35, 1e-6);
  EXPECT_NEAR(outcome.metrics->exposed_ms(0), 0, 1e-6);
  EXPECT_NEAR(outcome.metrics->update_ms(0), 0.03, 1e-6);
}

// Buckets resolve at 350, 500 and 650 us; the updates of the first two are done meanwhile.
TEST(StepReplayTest, WhatBackwardDoesNotHideIsExposedAndUpdatesRunMeanwhile) {
  const Outcome outcome = Replay(Options(1, 1), 150);
  ASSERT_TRUE(outcome.metrics.ok()) << outcome.metrics.status();
  EXPECT_NEAR(outcome.metrics->step_ms(0), 0.66, 1e-6);
  EXPECT_NEAR(outcome.metrics->update_ms(0), 0.03, 1e-6);
  EXPECT_NEAR(outcome.metrics->exposed_ms(0), 0.18, 1e-6);
}

// The third bucket has the first one's memory, which is free at 450 us instead of 400.
TEST(StepReplayTest, ABucketWithoutMemoryStopsTheStepUntilThereIsSome) {
  BucketSlots slots;
  slots.gradients = 2;
  const Outcome outcome = Replay(Options(1, 2), 250, slots);
  ASSERT_TRUE(outcome.metrics.ok()) << outcome.metrics.status();
  EXPECT_THAT(Gaps(outcome, 2), ElementsAre(0, 100, 250));
  EXPECT_NEAR(outcome.metrics->step_ms(0), 0.96, 1e-6);
  EXPECT_NEAR(outcome.metrics->backward_ms(0), 0.35, 1e-6);
  EXPECT_NEAR(outcome.metrics->exposed_ms(0), 0.48, 1e-6);
  EXPECT_THAT(Gaps(Replay(Options(1, 2), 250), 2), ElementsAre(0, 100, 200));
}

TEST(StepReplayTest, ScaleAndStragglerStretchAllComputation) {
  ReplayOptions options = Options(1, 2);
  options.spec.set_compute_scale(2);
  options.rank = 1;
  options.spec.set_straggler("1:3");
  const Outcome outcome = Replay(options, 10);
  ASSERT_TRUE(outcome.metrics.ok()) << outcome.metrics.status();
  EXPECT_NEAR(outcome.metrics->step_ms(0), 6 * 0.48, 1e-6);
  EXPECT_THAT(Gaps(outcome, 2), ElementsAre(0, 600, 1200));

  options.rank = 0;
  const Outcome other = Replay(options, 10);
  ASSERT_TRUE(other.metrics.ok()) << other.metrics.status();
  EXPECT_NEAR(other.metrics->step_ms(0), 2 * 0.48, 1e-6);
}

TEST(StepReplayTest, ARandomStragglerIsSlowInItsStepsOnly) {
  ReplayOptions options = Options(1, 20);
  options.spec.set_straggler("random:5:0.3:2");
  const Straggler straggler = Straggler::Parse(options.spec.straggler()).value();
  const Outcome outcome = Replay(options, 10);
  ASSERT_TRUE(outcome.metrics.ok()) << outcome.metrics.status();
  for (int i = 0; i < 20; ++i) {
    EXPECT_NEAR(outcome.metrics->step_ms(i), 0.48 * straggler.Factor(0, 2 + i), 1e-6);
  }
}

TEST(StepReplayTest, OnTheRealClockNoBucketIsEarly) {
  MonotonicReplayClock clock;
  const double begin = clock.Now();
  for (double due : {100.0, 300.0, 200.0, 1500.0}) {
    clock.SleepUntil(begin + due);
    EXPECT_GE(clock.Now(), begin + due);
  }
}

TEST(StepReplayTest, ResultsAreVerifiedUnderBothUpdateSites) {
  const proto::StepProfile profile = Profile();
  const Plan plan = PlanOf(profile);
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    SimulatedClock clock;
    const auto sync = CreateLocalSync(site);
    const auto metrics = ReplaySteps(
        Options(2, 1), plan, [] { return absl::OkStatus(); }, &clock, sync.get());
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_EQ(metrics->wrong(), 0);
    EXPECT_EQ(metrics->parameters(), 48);
    EXPECT_EQ(metrics->batch_size(), 8);
    EXPECT_EQ(metrics->params_sha256().size(), 64u);
  }
  // Rank 2 gets back its own gradients from a backend that exchanges nothing, which is no mean over
  // four ranks.
  PlanOptions four;
  four.world_size = 4;
  ReplayOptions options = Options(1, 1);
  options.rank = 2;
  SimulatedClock clock;
  const auto sync = SimulatedSync::Create(&clock, 1);
  const auto metrics = ReplaySteps(
      options, ProfilePlan(profile, four).value(), [] { return absl::OkStatus(); }, &clock,
      sync.get());
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_GT(metrics->wrong(), 40);
}

TEST(StepReplayTest, OptionsOutOfRangeAreRefused) {
  EXPECT_THAT(Replay(Options(0, 1), 1).metrics.status().message(), HasSubstr("warm-up step"));
  EXPECT_THAT(Replay(Options(1, 0), 1).metrics.status().message(), HasSubstr("measured step"));
  ReplayOptions negative = Options(1, 1);
  negative.spec.set_compute_scale(-1);
  EXPECT_THAT(Replay(negative, 1).metrics.status().message(), HasSubstr("found -1"));
}

}  // namespace
}  // namespace gradsync
