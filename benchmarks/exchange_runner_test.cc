#include "benchmarks/exchange_runner.h"

#include <utility>

#include "gtest/gtest.h"
#include "sync/local_sync.h"

namespace gradsync {
namespace {

// A backend of one rank that spoils one element of one step's result.
class Spoiled : public GradientSync {
 public:
  Spoiled(UpdateSite site, int64_t step) : sync_(CreateLocalSync(site)), step_(step) {}

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, absl::Time deadline) override {
    auto buckets = sync_->Bind(plan, deadline);
    buckets_ = *buckets;
    return buckets;
  }
  absl::Status BroadcastParameters(absl::Time deadline) override {
    return sync_->BroadcastParameters(deadline);
  }
  SyncHandle Launch(const StepOptions& step, int bucket) override {
    SyncHandle handle = sync_->Launch(step, bucket);
    if (!handle.Wait(absl::InfiniteFuture()).ok() || step.step != step_ || bucket != 1)
      return handle;
    const at::Tensor& result =
        update_site() == UpdateSite::kOwner ? buckets_[1].param : buckets_[1].grad;
    result.data_ptr<float>()[5] += 1;
    return handle;
  }
  UpdateSite update_site() const override { return sync_->update_site(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(absl::Time deadline) override {
    return sync_->ExportOptimizerState(deadline);
  }
  absl::Status ImportOptimizerState(const OptimizerState& state, absl::Time deadline) override {
    return sync_->ImportOptimizerState(state, deadline);
  }
  absl::Status status() const override { return sync_->status(); }
  void Abort(absl::Status reason) override { sync_->Abort(std::move(reason)); }
  absl::Status Shutdown(absl::Time deadline) override { return sync_->Shutdown(deadline); }
  WireStats wire_stats() const override { return sync_->wire_stats(); }

 private:
  const std::unique_ptr<GradientSync> sync_;
  const int64_t step_;
  std::vector<GradBucket> buckets_;
};

absl::Status StartAtOnce() { return absl::OkStatus(); }

ExchangeOptions Small() {
  ExchangeOptions options;
  options.bytes = 100002;  // no whole number of floats, nor of cache lines
  options.bucket_bytes = 40000;
  options.iterations = 4;
  options.warmup = 2;
  return options;
}

TEST(ExchangeRunnerTest, RightResultsAreNotWrongAndEveryIterationIsTimed) {
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    const auto sync = CreateLocalSync(site);
    const auto metrics = RunExchanges(Small(), StartAtOnce, sync.get());
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_EQ(metrics->wrong(), 0);
    EXPECT_EQ(metrics->buckets(), 3);
    ASSERT_EQ(metrics->begin_us_size(), 4);
    ASSERT_EQ(metrics->end_us_size(), 4);
    for (int i = 0; i < 4; ++i) EXPECT_LT(metrics->begin_us(i), metrics->end_us(i));
    for (int i = 1; i < 4; ++i) EXPECT_LE(metrics->end_us(i - 1), metrics->begin_us(i));
  }
}

TEST(ExchangeRunnerTest, OneWrongElementOfOneStepIsCounted) {
  for (int64_t step : {1, 4, 6}) {
    Spoiled worker(UpdateSite::kWorker, step);
    EXPECT_EQ(RunExchanges(Small(), StartAtOnce, &worker)->wrong(), 1) << "step " << step;
    // A parameter that is off once stays off.
    Spoiled owner(UpdateSite::kOwner, step);
    EXPECT_EQ(RunExchanges(Small(), StartAtOnce, &owner)->wrong(), 7 - step) << "step " << step;
  }
}

TEST(ExchangeRunnerTest, TheFirstErrorIsReturned) {
  const auto sync = CreateLocalSync(UpdateSite::kWorker);
  const auto metrics = RunExchanges(
      Small(), [] { return absl::UnavailableError("no start"); }, sync.get());
  EXPECT_EQ(metrics.status(), absl::UnavailableError("no start"));
}

TEST(ExchangePlanTest, BucketsHaveTheSizeAskedForAndTheLastHasTheRest) {
  const Plan plan = *ExchangePlan(Small());
  ASSERT_EQ(plan.buckets().size(), 3u);
  EXPECT_EQ(plan.buckets()[0].bytes(), 40000);
  EXPECT_EQ(plan.buckets()[1].bytes(), 40000);
  EXPECT_EQ(plan.tensors()[2].numel(), 20004 / 4);
  ExchangeOptions options;
  options.bytes = 4096;
  EXPECT_EQ(ExchangePlan(options)->total_bytes(), 4096);
}

}  // namespace
}  // namespace gradsync
