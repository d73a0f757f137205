#include "benchmarks/exchange/exchange_runner.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "allreduce/fake_nccl.h"
#include "allreduce/nccl_gradient_sync.h"
#include "benchmarks/ranks/start_line.h"
#include "core/base/deadline.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "core/sync/local_sync.h"
#include "core/sync/staged_sync.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// A backend of one rank that spoils one element of one step's result.
class Spoiled : public GradientSync {
 public:
  Spoiled(UpdateSite site, int64_t step) : sync_(CreateLocalSync(site)), step_(step) {}

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override {
    auto buckets = sync_->Bind(plan, deadline);
    buckets_ = *buckets;
    return buckets;
  }
  absl::Status BroadcastParameters(Deadline deadline) override {
    return sync_->BroadcastParameters(deadline);
  }
  SyncHandle Launch(const StepOptions& step, int bucket) override {
    SyncHandle handle = sync_->Launch(step, bucket);
    if (!handle.Wait(Deadline::Never()).ok() || step.step != step_ || bucket != 1) return handle;
    const FlatBuffer& result =
        update_site() == UpdateSite::kOwner ? buckets_[1].param : buckets_[1].grad;
    result.floats()[5] += 1;
    return handle;
  }
  UpdateSite update_site() const override { return sync_->update_site(); }
  SyncIdentity identity() const override { return sync_->identity(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override {
    return sync_->ExportOptimizerState(deadline);
  }
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override {
    return sync_->ImportOptimizerState(state, deadline);
  }
  absl::StatusOr<RankState> ExportRankState() override { return sync_->ExportRankState(); }
  absl::Status ImportRankState(const RankState& state) override {
    return sync_->ImportRankState(state);
  }
  absl::Status Settle(Deadline deadline) override { return sync_->Settle(deadline); }
  absl::Status status() const override { return sync_->status(); }
  void Abort(absl::Status reason) override { sync_->Abort(std::move(reason)); }
  absl::Status Shutdown(Deadline deadline) override { return sync_->Shutdown(deadline); }
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

// Notes when it was waited for.
class WatchedGpu : public FakeGpu {
 public:
  absl::Status Synchronize(GpuEvent event) override {
    const absl::Status status = FakeGpu::Synchronize(event);
    waited_us.push_back(MonotonicMicroseconds());
    return status;
  }

  std::vector<double> waited_us;
};

TEST(ExchangeRunnerTest, BucketsOnAGpuAreFilledAndCheckedThereAndTheEndIsWhenItIsDone) {
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    const auto gpu = std::make_shared<WatchedGpu>();
    {
      const auto sync = CreateStagedSync(CreateLocalSync(site), gpu);
      const auto metrics = RunExchanges(Small(), StartAtOnce, sync.get());
      ASSERT_TRUE(metrics.ok()) << metrics.status();
      EXPECT_EQ(metrics->wrong(), 0);
      for (int i = 0; i < metrics->begin_us_size(); ++i) {
        const auto within = [&](double us) {
          return metrics->begin_us(i) < us && us <= metrics->end_us(i);
        };
        EXPECT_EQ(std::count_if(gpu->waited_us.begin(), gpu->waited_us.end(), within), 1);
      }
    }
    EXPECT_EQ(gpu->unpinned_copies(), 0);
    EXPECT_EQ(gpu->live_objects(), 0);
  }
}

TEST(ExchangeRunnerTest, TheRingOverNcclIsExactForTheseInputsWhateverItsOrder) {
  constexpr int kRanks = 3;
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    const auto network = std::make_shared<FakeNcclNetwork>();
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    const auto run = [&](int rank) {
      NcclOptions nccl;
      nccl.group.rank = rank;
      nccl.group.world_size = kRanks;
      nccl.group.run_id = "exchange";
      nccl.group.store = store;
      nccl.update_site = site;
      const auto gpu = std::make_shared<FakeGpu>(rank);
      nccl.gpu = gpu;
      nccl.nccl = std::make_shared<FakeNccl>(network, gpu);
      const auto sync = CreateNcclGradientSync(nccl);
      ASSERT_TRUE(sync.ok()) << sync.status();
      ExchangeOptions options = Small();
      options.rank = rank;
      options.world_size = kRanks;
      const auto line = StartLine::Open(testing::TempDir() + "/line", kRanks);
      ASSERT_TRUE(line.ok()) << line.status();
      const auto start = [&] { return (*line)->Wait(Deadline::In(absl::Seconds(60))); };
      const auto metrics = RunExchanges(options, start, sync->get());
      ASSERT_TRUE(metrics.ok()) << metrics.status();
      EXPECT_EQ(metrics->wrong(), 0);
      EXPECT_EQ(metrics->end_us_size(), options.iterations);
    };
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run, rank);
    for (std::thread& rank : ranks) rank.join();
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
