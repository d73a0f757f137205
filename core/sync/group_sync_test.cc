#include "core/sync/group_sync.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/trace_recorder.h"
#include "core/group/key_value_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

Plan TwoBuckets(int world_size) {
  OptimizerSpec momentum;
  momentum.groups.resize(1);
  momentum.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {3}, {1}, 0}, {"b", {5}, {1}, 0}}, {{0}, {1}}, momentum,
                            world_size, /*chunk_bytes=*/64);
}

StepOptions Step(int64_t number, double lr = 0.1) {
  StepOptions step;
  step.step = number;
  step.lr = lr;
  return step;
}

// What an engine was called for, in order; outlives it.
class Calls {
 public:
  void Note(std::string call) {
    MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }
  std::vector<std::string> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(calls_, {});
  }

 private:
  Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
};

struct Script {
  UpdateSite site = UpdateSite::kOwner;
  std::string terms;
  absl::Status launch;          // what Launch() says
  absl::Status broadcast;       // what Broadcast() says
  bool never_resolves = false;  // handles of launches, but by Fail()
};

class ScriptedEngine : public SyncEngine {
 public:
  ScriptedEngine(EngineHost& host, Script script, std::shared_ptr<Calls> calls)
      : SyncEngine(host), script_(std::move(script)), calls_(std::move(calls)) {}

  SyncIdentity identity() const override { return {Backend::kLocal}; }
  UpdateSite update_site() const override { return script_.site; }
  std::string Terms() const override { return script_.terms; }
  absl::Status CheckPlan(const Plan&) const override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline) override {
    calls_->Note("Connect");
    return std::vector<GradBucket>(plan.buckets().size());
  }
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override {
    calls_->Note(absl::StrCat("Launch ", step.step, " ", bucket));
    if (!script_.launch.ok()) return script_.launch;
    if (!script_.never_resolves) return ResolvedHandle(absl::OkStatus());
    MutexLock lock(&mutex_);
    open_.emplace_back("a launch");
    return open_.back().handle();
  }
  absl::Status Broadcast(int64_t steps, Deadline) override {
    calls_->Note(absl::StrCat("Broadcast after ", steps));
    return script_.broadcast;
  }
  absl::Status Settle(Deadline) override {
    calls_->Note("Settle");
    return absl::OkStatus();
  }
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline) override {
    calls_->Note(absl::StrCat("Export after ", steps));
    OptimizerState state;
    state.step = steps;
    return state;
  }
  absl::Status Import(const OptimizerState& state, Deadline) override {
    calls_->Note(absl::StrCat("Import of ", state.step));
    return absl::OkStatus();
  }
  void ForgetResiduals() override { calls_->Note("ForgetResiduals"); }
  WireStats wire_stats() const override { return {1, 2, 3, 4}; }
  void Halt(const absl::Status&) override { calls_->Note("Halt"); }
  absl::Status Stop(absl::Status status) override {
    calls_->Note("Stop");
    return absl::Status(status.code(), absl::StrCat(status.message(), "; stopped"));
  }
  void Fail(const absl::Status& status) override {
    calls_->Note("Fail");
    MutexLock lock(&mutex_);
    for (const SyncPromise& promise : open_) promise.Resolve(status);
  }
  absl::Status Drain(Deadline) override {
    calls_->Note("Drain");
    return absl::OkStatus();
  }
  absl::Status Leave(Deadline) override {
    calls_->Note("Leave");
    return absl::OkStatus();
  }
  void Close() override { calls_->Note("Close"); }

 private:
  const Script script_;
  const std::shared_ptr<Calls> calls_;
  Mutex mutex_;
  std::vector<SyncPromise> open_ ABSL_GUARDED_BY(mutex_);
};

EngineFactory Engine(const Script& script, const std::shared_ptr<Calls>& calls) {
  return [=](EngineHost& host) { return std::make_unique<ScriptedEngine>(host, script, calls); };
}

// A worker alone.
class SoloSyncTest : public testing::Test {
 protected:
  void Start(const Script& script) { sync_ = NewSoloSync("scripted", Engine(script, calls_)); }

  void Bind() {
    ASSERT_EQ(sync_->Bind(plan_, Soon()).status(), absl::OkStatus());
    calls_->Take();
  }

  absl::Status Launch(int64_t step, int bucket) {
    return sync_->Launch(Step(step), bucket).Wait(Soon());
  }

  const Plan plan_ = TwoBuckets(1);
  const std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  std::unique_ptr<GradientSync> sync_;
};

TEST_F(SoloSyncTest, NothingReachesTheEngineBeforeBind) {
  Start({});
  EXPECT_TRUE(absl::IsFailedPrecondition(Launch(1, 0)));
  EXPECT_TRUE(absl::IsFailedPrecondition(sync_->BroadcastParameters(Soon())));
  EXPECT_TRUE(absl::IsFailedPrecondition(sync_->Settle(Soon())));
  EXPECT_TRUE(absl::IsFailedPrecondition(sync_->ExportOptimizerState(Soon()).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(sync_->ImportOptimizerState({}, Soon())));
  EXPECT_TRUE(absl::IsFailedPrecondition(sync_->Shutdown(Soon())));
  EXPECT_EQ(sync_->wire_stats().tx_bytes, 0);
  EXPECT_THAT(calls_->Take(), IsEmpty());
}

TEST_F(SoloSyncTest, TheStepsDoneAreThoseLaunchedOrImported) {
  Start({});
  Bind();
  ASSERT_EQ(Launch(3, 0), absl::OkStatus());
  ASSERT_EQ(Launch(3, 1), absl::OkStatus());
  EXPECT_EQ(sync_->ExportOptimizerState(Soon())->step, 3);
  OptimizerState state;
  state.step = 7;
  EXPECT_EQ(sync_->ImportOptimizerState(state, Soon()), absl::OkStatus());
  EXPECT_EQ(sync_->BroadcastParameters(Soon()), absl::OkStatus());
  EXPECT_THAT(calls_->Take(), ElementsAre("Launch 3 0", "Launch 3 1", "Export after 3",
                                          "ForgetResiduals", "Import of 7", "Broadcast after 7"));
}

TEST_F(SoloSyncTest, UnderUpdateAtTheWorkerTheEngineHasNoState) {
  Script script;
  script.site = UpdateSite::kWorker;
  Start(script);
  Bind();
  EXPECT_EQ(sync_->ExportOptimizerState(Soon())->slots.size(), 0u);
  EXPECT_EQ(sync_->ImportOptimizerState({}, Soon()), absl::OkStatus());
  EXPECT_THAT(calls_->Take(), ElementsAre("ForgetResiduals"));
}

TEST_F(SoloSyncTest, AStateThatDoesNotFitThePlanDoesNotReachTheEngine) {
  Start({});
  Bind();
  OptimizerState state;
  state.slots["a"]["momentum_buffer"] = {1, 2};
  EXPECT_TRUE(absl::IsInvalidArgument(sync_->ImportOptimizerState(state, Soon())));
  EXPECT_THAT(calls_->Take(), IsEmpty());
  EXPECT_EQ(sync_->status(), absl::OkStatus());
}

TEST_F(SoloSyncTest, AFailureHaltsStopsAndThenResolvesHandles) {
  Script script;
  script.never_resolves = true;
  Start(script);
  Bind();
  const SyncHandle open = sync_->Launch(Step(1), 0);
  sync_->Abort(absl::DataLossError("disk on fire"));
  EXPECT_THAT(calls_->Take(), ElementsAre("Launch 1 0", "Halt", "Halt", "Stop", "Fail"));
  EXPECT_EQ(open.Wait(Soon()), absl::DataLossError("disk on fire; stopped"));
  EXPECT_EQ(sync_->status(), absl::DataLossError("disk on fire; stopped"));
  EXPECT_EQ(Launch(1, 1), absl::DataLossError("disk on fire; stopped"));
  EXPECT_EQ(sync_->Shutdown(Soon()), absl::DataLossError("disk on fire; stopped"));
  sync_->Abort(absl::InternalError("another"));
  EXPECT_EQ(sync_->status(), absl::DataLossError("disk on fire; stopped"));
}

TEST_F(SoloSyncTest, WhatAnEngineReturnsIsTheFailure) {
  Script script;
  script.broadcast = absl::UnavailableError("no wire");
  Start(script);
  Bind();
  EXPECT_EQ(sync_->BroadcastParameters(Soon()), absl::UnavailableError("no wire; stopped"));
  EXPECT_EQ(sync_->status(), absl::UnavailableError("no wire; stopped"));
}

TEST_F(SoloSyncTest, ALaunchThatIsRefusedDoesNotReachTheEngineAndFails) {
  Start({});
  Bind();
  EXPECT_TRUE(absl::IsFailedPrecondition(Launch(1, 1)));
  EXPECT_THAT(calls_->Take(), ElementsAre("Halt", "Halt", "Stop", "Fail"));
}

TEST_F(SoloSyncTest, LeavesOnceAndAbortThenDoesNothing) {
  Start({});
  Bind();
  EXPECT_EQ(sync_->wire_stats().rx_messages, 4);
  EXPECT_EQ(sync_->Shutdown(Soon()), absl::OkStatus());
  EXPECT_THAT(calls_->Take(), ElementsAre("Settle", "Drain", "Leave"));
  EXPECT_EQ(sync_->Shutdown(Soon()), absl::OkStatus());
  sync_->Abort(absl::DataLossError("too late"));
  EXPECT_EQ(sync_->status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsCancelled(Launch(1, 0)));
  EXPECT_THAT(calls_->Take(), IsEmpty());
  sync_.reset();
  EXPECT_THAT(calls_->Take(), ElementsAre("Close"));
}

TEST_F(SoloSyncTest, WhoIsDestroyedWithoutShutdownFailsFirst) {
  Start({});
  Bind();
  sync_.reset();
  EXPECT_THAT(calls_->Take(), ElementsAre("Halt", "Halt", "Stop", "Fail", "Close"));
}

TEST(RecordedSyncTest, ALaunchThatIsOverAtOnceHasABeginAndAnEnd) {
  WorkerGroup alone;
  alone.recorder = std::make_shared<TraceRecorder>(2, 2);
  const auto sync = *NewGroupSync(alone, "scripted", Engine({}, std::make_shared<Calls>()));
  ASSERT_EQ(sync->Bind(TwoBuckets(1), Soon()).status(), absl::OkStatus());
  const MonotonicTime before = MonotonicTime::Now();
  for (int64_t step : {1, 2}) {
    for (int bucket : {0, 1}) {
      ASSERT_EQ(sync->Launch(Step(step), bucket).Wait(Soon()), absl::OkStatus());
    }
  }
  ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  const std::vector<TraceEvent> events = alone.recorder->Take();
  ASSERT_EQ(events.size(), 2u);
  for (const TraceEvent& event : events) {
    EXPECT_GE(event.begin, before);
    EXPECT_GE(event.end, event.begin);
    EXPECT_LE(event.end, MonotonicTime::Now());
  }
}

// Two workers, each on a thread.
class GroupSyncTest : public testing::Test {
 protected:
  void Run(const std::function<Script(int rank)>& script,
           const std::function<void(int rank, GradientSync& sync)>& body) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        WorkerGroup group;
        group.rank = rank;
        group.world_size = 2;
        group.run_id = "group_sync";
        group.store = store;
        group.ranks_of_job = ranks_of_job_;
        const auto sync =
            NewGroupSync(group, "scripted", Engine(script(rank), std::make_shared<Calls>()));
        ASSERT_EQ(sync.status(), absl::OkStatus());
        body(rank, **sync);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<int> ranks_of_job_;
};

// Other terms on each rank.
Script OwnTerms(int rank) {
  Script script;
  script.terms = absl::StrCat("window ", rank);
  return script;
}

TEST_F(GroupSyncTest, TermsAndUpdateSitesThatDifferAreFoundByEveryRankAndFailNothing) {
  Run(OwnTerms, [](int, GradientSync& sync) {
    const absl::Status bound = sync.Bind(TwoBuckets(2), Soon()).status();
    EXPECT_EQ(bound, absl::FailedPreconditionError(
                         "scripted options differ: rank 0 has window 0, the update at the owners; "
                         "rank 1 has window 1, the update at the owners"));
  });
  const auto sites = [](int rank) {
    Script script;
    script.site = rank == 0 ? UpdateSite::kOwner : UpdateSite::kWorker;
    return script;
  };
  Run(sites, [](int, GradientSync& sync) {
    const absl::Status bound = sync.Bind(TwoBuckets(2), Soon()).status();
    EXPECT_EQ(bound, absl::FailedPreconditionError(
                         "scripted options differ: rank 0 has the update at the owners; rank 1 has "
                         "the update at the workers"));
  });
}

TEST_F(GroupSyncTest, ALaunchThatFailsIsTheFailureOfTheGroup) {
  const auto script = [](int rank) {
    Script script;
    if (rank == 0) script.launch = absl::InternalError("no GPU");
    script.never_resolves = true;
    return script;
  };
  Run(script, [](int rank, GradientSync& sync) {
    ASSERT_EQ(sync.Bind(TwoBuckets(2), Soon()).status(), absl::OkStatus());
    const absl::Status launched = sync.Launch(Step(1), 0).Wait(Soon());
    if (rank == 0) {
      EXPECT_EQ(launched, absl::InternalError("no GPU; stopped"));
    } else {
      EXPECT_TRUE(absl::IsAborted(launched)) << launched;
      EXPECT_THAT(launched.message(), HasSubstr("rank 0 failed first: INTERNAL: no GPU"));
    }
    EXPECT_EQ(sync.status(), launched);
  });
}

// Who aborted without a reason was called by its place, and so another rank of the job was blamed.
TEST_F(GroupSyncTest, RanksOfAPartOfAJobHaveTheirNumbersInTheJob) {
  ranks_of_job_ = {1, 3};
  Run(OwnTerms, [](int, GradientSync& sync) {
    const absl::Status bound = sync.Bind(TwoBuckets(2), Soon()).status();
    EXPECT_THAT(bound.message(), HasSubstr("differ: rank 1 has window 0,"));
    EXPECT_THAT(bound.message(), HasSubstr("; rank 3 has window 1,"));
  });
  const auto open = [](int) {
    Script script;
    script.never_resolves = true;
    return script;
  };
  std::atomic<int> launched{0};
  Run(open, [&launched](int rank, GradientSync& sync) {
    ASSERT_EQ(sync.Bind(TwoBuckets(2), Soon()).status(), absl::OkStatus());
    const SyncHandle handle = sync.Launch(Step(1), 0);
    ++launched;
    while (rank == 1 && launched < 2) std::this_thread::yield();
    if (rank == 1) sync.Abort(absl::OkStatus());
    EXPECT_EQ(handle.Wait(Soon()).message(), "rank 3 aborted without a reason; stopped");
  });
}

TEST_F(GroupSyncTest, ARankThatLeavesBeforeAnothersStepFailsThatStep) {
  const auto open = [](int) {
    Script script;
    script.never_resolves = true;
    return script;
  };
  for (const bool waits_already : {false, true}) {
    std::atomic<bool> launched{false};
    Run(open, [&](int rank, GradientSync& sync) {
      ASSERT_EQ(sync.Bind(TwoBuckets(2), Soon()).status(), absl::OkStatus());
      const std::string expected = "rank 1 has left before its first step, rank 0 waits in step 1";
      if (rank == 1) {
        while (waits_already && !launched) std::this_thread::yield();
        EXPECT_THAT(sync.Shutdown(Soon()).message(), HasSubstr(expected));
        return;
      }
      const SyncHandle handle = sync.Launch(Step(1), 0);
      launched = true;
      EXPECT_THAT(handle.Wait(Soon()).message(), HasSubstr(expected));
    });
  }
}

// What the first pair said when it left is in the store still.
TEST_F(GroupSyncTest, ASecondPairOverTheSameStoreMayDoMoreSteps) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  for (const int steps : {1, 3}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        WorkerGroup group;
        group.rank = rank;
        group.world_size = 2;
        group.run_id = "group_sync";
        group.store = store;
        const auto sync = *NewGroupSync(group, "scripted", Engine({}, std::make_shared<Calls>()));
        ASSERT_EQ(sync->Bind(TwoBuckets(2), Soon()).status(), absl::OkStatus());
        for (int step = 1; step <= steps; ++step) {
          for (const int bucket : {0, 1}) {
            EXPECT_EQ(sync->Launch(Step(step), bucket).Wait(Soon()), absl::OkStatus());
          }
        }
        EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(GroupSyncTest, AGroupThatCannotBeIsRefused) {
  WorkerGroup group;
  group.rank = 2;
  group.world_size = 2;
  const EngineFactory engine = Engine({}, std::make_shared<Calls>());
  EXPECT_THAT(NewGroupSync(group, "scripted", engine).status().message(),
              HasSubstr("scripted: expected a rank in 0..world_size-1, found 2 of 2"));
  group.rank = 1;
  EXPECT_THAT(NewGroupSync(group, "scripted", engine).status().message(),
              HasSubstr("scripted: expected a store with more than one rank"));
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << "\nlacks " << text;
}

TEST(LaunchOrderTest, BucketsComeInOrderAndStepsGrow) {
  LaunchOrder order(2);
  ExpectRefused(order.Check(Step(1), 1), "expected bucket 0 of 2, found bucket 1");
  ExpectRefused(order.Check(Step(0), 0), "launch of step 0");
  EXPECT_EQ(order.Check(Step(3), 0), absl::OkStatus());
  ExpectRefused(order.Check(Step(4), 0), "expected bucket 1");
  ExpectRefused(order.Check(Step(3, 0.2), 1), "lr 0.1");
  EXPECT_EQ(order.Check(Step(3), 1), absl::OkStatus());
  ExpectRefused(order.Check(Step(3), 0), "expected a step after 3");
  EXPECT_EQ(order.Check(Step(5), 0), absl::OkStatus());
}

TEST(LaunchOrderTest, AStepWaitsForAllHandlesOfTheOneBefore) {
  LaunchOrder order(2);
  const SyncPromise first("bucket 0"), second("bucket 1");
  ASSERT_EQ(order.Check(Step(1), 0), absl::OkStatus());
  order.Launched(first.handle());
  ASSERT_EQ(order.Check(Step(1), 1), absl::OkStatus());
  order.Launched(second.handle());
  first.Resolve(absl::OkStatus());
  ExpectRefused(order.Check(Step(2), 0), "expected all handles of step 1 to be resolved");
  ExpectRefused(order.Check(Step(2), 0), "bucket 1");
  second.Resolve(absl::OkStatus());
  EXPECT_EQ(order.Check(Step(2), 0), absl::OkStatus());
  // Those of the step before are forgotten.
  order.Launched(ResolvedHandle(absl::OkStatus()));
  EXPECT_EQ(order.Check(Step(2), 1), absl::OkStatus());
  order.Launched(ResolvedHandle(absl::OkStatus()));
  EXPECT_EQ(order.Check(Step(3), 0), absl::OkStatus());
}

}  // namespace
}  // namespace gradsync
