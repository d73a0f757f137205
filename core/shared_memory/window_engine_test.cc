// A worker's engine where servers share memory too. The other worker and the server are played by
// hand; what an engine does in a ring is in allreduce/shm_engine_test.cc.
#include "core/shared_memory/window_engine.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/await_asleep.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_owner.h"
#include "core/shared_memory/window_worker.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int kServer = 2;  // as a member
constexpr int64_t kTiny = 100;
constexpr int64_t kSmall = 200;
constexpr int64_t kLarge = (2 << 20) / 4;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

class WindowEngineTest : public ::testing::Test {
 protected:
  // Buckets of so many elements.
  void Start(const std::vector<int64_t>& sizes) {
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<int>> buckets;
    for (size_t i = 0; i < sizes.size(); ++i) {
      tensors.push_back({std::string(1, static_cast<char>('a' + i)), {sizes[i]}, {1}, 0});
      buckets.push_back({static_cast<int>(i)});
    }
    const Plan plan = *Plan::FromBuckets(tensors, buckets, optimizer, /*world_size=*/2,
                                         /*chunk_bytes=*/1 << 16);
    group_ = std::make_shared<const WindowGroup>(
        plan, *ShardMap::Create(plan, {1}),
        std::vector<std::string>{"rank 1", "rank 3", "server 2 (host:1)"});
    std::vector<std::shared_ptr<Window>> windows;
    for (int member = 0; member < group_->members(); ++member) {
      windows.push_back(*Window::Create(static_cast<size_t>(group_->Layout(member).bytes())));
    }
    const auto view = [&](int member) {
      return std::make_shared<GroupWindows>(group_, member, windows);
    };
    own_ = view(0);
    other_ = view(1);
    other_worker_.emplace(other_.get());
    server_windows_ = view(kServer);
    server_.emplace(server_windows_.get(), nullptr);
    WindowEngineOptions options;
    options.windows = own_;
    options.owner = std::make_shared<WindowOwner>(own_.get(), nullptr);
    options.report = [this](absl::Status status) { reported_.Update(std::move(status)); };
    options.shares_cores = false;
    engine_ = WindowEngine::Start(std::move(options));
  }

  void Fill() {
    for (int bucket = 0; bucket < static_cast<int>(own_->plan().buckets().size()); ++bucket) {
      for (int64_t i = 0; i < own_->plan().buckets()[bucket].numel; ++i) {
        own_->grad(0, bucket)[i] = 1;
        own_->grad(1, bucket)[i] = 2;
      }
    }
  }

  // The other worker launches the step's first buckets, so many launches in all.
  void OtherLaunches(int64_t step, int64_t launches) {
    const auto buckets = static_cast<int64_t>(own_->plan().buckets().size());
    while (other_worker_->launched() < launches) {
      const int bucket = static_cast<int>(other_worker_->launched() % buckets);
      other_worker_->Post(Step(step), bucket);
      other_worker_->Begin(Step(step), bucket);
    }
  }

  // The server does its part of so many launches in all.
  void ServerReduces(int64_t launches) {
    while (server_->reduced() < launches) ASSERT_EQ(server_->Reduce(false), absl::OkStatus());
  }

  void ExpectMeans(int bucket) {
    for (int rank : {0, 1}) {
      for (int64_t i = 0; i < own_->plan().buckets()[bucket].numel; ++i) {
        ASSERT_EQ(own_->grad(rank, bucket)[i], 1.5f) << rank << " " << i;
      }
    }
  }

  ~WindowEngineTest() override { EXPECT_EQ(reported_, absl::OkStatus()); }

  // The first step, which is the server's.
  void TakeFirstStep() {
    const int buckets = static_cast<int>(own_->plan().buckets().size());
    Fill();
    OtherLaunches(1, buckets);
    std::vector<SyncHandle> handles;
    for (int bucket = 0; bucket < buckets; ++bucket) {
      handles.push_back(engine_->Launch(Step(1), bucket));
    }
    ServerReduces(buckets);
    for (int bucket = 0; bucket < buckets; ++bucket) {
      EXPECT_EQ(handles[bucket].Wait(Soon()), absl::OkStatus());
      ExpectMeans(bucket);
    }
  }

  absl::Status reported_;
  std::shared_ptr<const WindowGroup> group_;
  std::shared_ptr<GroupWindows> own_, other_, server_windows_;
  absl::optional<WindowWorker> other_worker_;
  absl::optional<WindowOwner> server_;
  std::shared_ptr<WindowEngine> engine_;
};

TEST_F(WindowEngineTest, TheFirstStepIsTheServers) {
  Start({kSmall});
  Fill();
  OtherLaunches(1, 1);
  const SyncHandle handle = engine_->Launch(Step(1), 0);
  EXPECT_FALSE(handle.done());
  EXPECT_EQ(own_->grad(0, 0)[0], 1.0f);
  ServerReduces(1);
  EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
  ExpectMeans(0);
}

// They were called by their places in their stage.
TEST_F(WindowEngineTest, WorkersThatDisagreeOnTheStepAreCalledWhatTheJobCallsThem) {
  Start({kSmall});
  StepOptions other = Step(1);
  other.lr = 0.2;
  other_worker_->Post(other, 0);
  const SyncHandle handle = engine_->Launch(Step(1), 0);
  const absl::Status refused = server_->Reduce(false);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), ": rank 1 has step 1 (lr 0.1")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), ", rank 3 has step 1 (lr 0.2")) << refused;
}

TEST_F(WindowEngineTest, LaterTheLastToLaunchASmallBucketDoesItAndTheServerCountsIt) {
  Start({kSmall, kSmall});
  TakeFirstStep();
  Fill();
  OtherLaunches(2, 3);
  AwaitThreadAsleep(own_->window(0));
  EXPECT_TRUE(engine_->Launch(Step(2), 0).done());
  ExpectMeans(0);
  // It was not asked, and knows all the same; what is left of it is nothing to do.
  EXPECT_EQ(server_->reduced(), 2);
  EXPECT_EQ(server_->launched(), 3);
  own_->grad(0, 0)[0] = 7;
  ServerReduces(3);
  EXPECT_EQ(own_->grad(0, 0)[0], 7.0f);
}

TEST_F(WindowEngineTest, WhoWaitsForASmallBucketDoesItWhenTheLastHasLaunchedIt) {
  Start({kSmall});
  TakeFirstStep();
  Fill();
  const SyncHandle handle = engine_->Launch(Step(2), 0);
  EXPECT_FALSE(handle.done());
  OtherLaunches(2, 2);
  EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
  ExpectMeans(0);
}

TEST_F(WindowEngineTest, EachWorkerAddsUpATinyBucketForItself) {
  Start({kTiny});
  TakeFirstStep();
  Fill();
  OtherLaunches(2, 2);
  AwaitThreadAsleep(own_->window(0));
  EXPECT_TRUE(engine_->Launch(Step(2), 0).done());
  for (int64_t i = 0; i < kTiny; ++i) {
    ASSERT_EQ(own_->grad(0, 0)[i], 1.5f) << i;
    ASSERT_EQ(own_->grad(1, 0)[i], 2.0f) << i;
  }
  // The server counts it, and has nothing to do.
  EXPECT_EQ(server_->launched(), 2);
  ServerReduces(2);
  EXPECT_EQ(own_->grad(0, 0)[0], 1.5f);
  EXPECT_EQ(own_->grad(1, 0)[0], 2.0f);
}

TEST_F(WindowEngineTest, WhoWaitsForATinyBucketHasItWhenAllHavePosted) {
  Start({kTiny});
  TakeFirstStep();
  Fill();
  const SyncHandle handle = engine_->Launch(Step(2), 0);
  EXPECT_FALSE(handle.done());
  EXPECT_EQ(own_->grad(0, 0)[0], 1.0f);
  OtherLaunches(2, 2);
  EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
  EXPECT_EQ(own_->grad(0, 0)[kTiny - 1], 1.5f);
}

// The other, which has posted, may change its gradient before this one has added it up.
TEST_F(WindowEngineTest, WhatWasPostedStaysWhatItWas) {
  Start({kTiny, kTiny});
  TakeFirstStep();
  Fill();
  const SyncHandle first = engine_->Launch(Step(2), 0);
  OtherLaunches(2, 4);
  own_->grad(1, 0)[0] = 100;
  // Those before are done with the next.
  EXPECT_TRUE(engine_->Launch(Step(2), 1).done());
  EXPECT_TRUE(first.done());
  EXPECT_EQ(own_->grad(0, 0)[0], 1.5f);
  EXPECT_EQ(own_->grad(0, 1)[0], 1.5f);
}

// Servers were rung, which have no part in it, and the other worker slept on.
TEST_F(WindowEngineTest, TheLastToPostWakesWorkersAlsoWhereAnotherThreadIsAtWork) {
  Start({kLarge, kTiny});
  TakeFirstStep();
  OtherLaunches(2, 4);
  std::thread other([this] {
    other_->signals().GuestComes();
    other_->signals().Await(
        WindowSignals::kGuest, [this] { return other_->posts(1).AllThere(2); },
        absl::ZeroDuration(), Soon());
    other_->signals().GuestLeaves();
  });
  AwaitAsleep(own_->window(1), WindowControl::kGuestAsleep);
  const SyncHandle large = engine_->Launch(Step(2), 0);
  std::thread at_work([&] { EXPECT_EQ(large.Wait(Soon()), absl::OkStatus()); });
  AwaitAsleep(own_->window(0), WindowControl::kGuestAsleep);
  const MonotonicTime begin = MonotonicTime::Now();
  const SyncHandle tiny = engine_->Launch(Step(2), 1);
  other.join();
  EXPECT_LT(MonotonicTime::Now() - begin, absl::Seconds(30));
  ServerReduces(4);
  server_windows_->signals().RingOtherWorkers();
  at_work.join();
  EXPECT_EQ(tiny.Wait(Soon()), absl::OkStatus());
}

TEST_F(WindowEngineTest, WhoAddsUpWhatWasPostedSeesThatWorkersDisagreeOnTheStep) {
  Start({kTiny});
  TakeFirstStep();
  StepOptions other = Step(2);
  other.lr = 0.2;
  other_worker_->Post(other, 0);
  engine_->Launch(Step(2), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(reported_)) << reported_;
  EXPECT_TRUE(absl::StrContains(reported_.message(), ": rank 1 has step 2 (lr 0.1")) << reported_;
  EXPECT_TRUE(absl::StrContains(reported_.message(), ", rank 3 has step 2 (lr 0.2")) << reported_;
  reported_ = absl::OkStatus();
}

TEST_F(WindowEngineTest, LargeBucketsAreTheServersInEveryStep) {
  Start({kLarge});
  for (int64_t step : {1, 2}) {
    Fill();
    OtherLaunches(step, step);
    const SyncHandle handle = engine_->Launch(Step(step), 0);
    EXPECT_FALSE(handle.done());
    EXPECT_EQ(own_->grad(0, 0)[0], 1.0f);
    ServerReduces(step);
    EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
    ExpectMeans(0);
  }
}

}  // namespace
}  // namespace gradsync
