// What ssp and asp promise (docs/use/consistency.md), between real clients and servers.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/plan/kinds.h"
#include "gtest/gtest.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"
#include "tests/staleness_job.h"

namespace gradsync {
namespace {

PsOptions Under(const std::string& consistency) {
  PsOptions options;
  options.update_site = UpdateSite::kOwner;
  options.consistency = *ParseConsistency(consistency);
  return options;
}

void Join(GradientSync& sync, const Plan& plan) {
  ASSERT_TRUE(sync.Bind(plan, Soon()).ok());
  ASSERT_EQ(sync.BroadcastParameters(Soon()), absl::OkStatus());
}

// Launches all buckets of a step.
std::vector<SyncHandle> LaunchStep(GradientSync& sync, const Plan& plan, int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return LaunchStep(sync, plan.buckets().size(), step);
}

bool AllDone(const std::vector<SyncHandle>& handles) {
  for (const SyncHandle& handle : handles) {
    if (!handle.done()) return false;
  }
  return true;
}

TEST(ConsistencyTest, AspRunsToTheEndWhileAnotherRankHasNotBegun) {
  constexpr int kSteps = 20;
  const Plan plan = UnevenPlan(2);
  PsGroup group(NewInProcessLink(), 2, 2, Under("asp"));
  absl::Notification ended;
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    Join(*sync, plan);
    if (rank == 1) ended.WaitForNotification();
    for (int64_t s = 1; s <= kSteps; ++s) ASSERT_EQ(RunStep(*sync, plan, s), absl::OkStatus());
    if (rank == 0) {
      EXPECT_EQ(sync->staleness().max(), kSteps);
      EXPECT_EQ(sync->staleness().histogram[kSteps], 1);
      ended.Notify();
    }
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(ConsistencyTest, SspWaitsAtItsBoundUntilTheSlowestHasPushed) {
  const Plan plan = UnevenPlan(2);
  PsGroup group(NewInProcessLink(), 2, 2, Under("ssp:2"));
  absl::Notification at_bound;
  std::atomic<bool> released{false};
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    Join(*sync, plan);
    if (rank == 1) {
      at_bound.WaitForNotification();
      released = true;
      ASSERT_EQ(RunStep(*sync, plan, 1), absl::OkStatus());
    } else {
      ASSERT_EQ(RunStep(*sync, plan, 1), absl::OkStatus());
      ASSERT_EQ(RunStep(*sync, plan, 2), absl::OkStatus());
      const std::vector<SyncHandle> third = LaunchStep(*sync, plan, 3);
      EXPECT_TRUE(absl::IsDeadlineExceeded(third[1].Wait(Deadline::In(absl::Milliseconds(300)))));
      EXPECT_FALSE(AllDone(third));
      at_bound.Notify();
      for (const SyncHandle& handle : third) ASSERT_EQ(handle.Wait(Soon()), absl::OkStatus());
      EXPECT_TRUE(released);
      EXPECT_EQ(sync->staleness().max(), 2);
    }
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(ConsistencyTest, ARankThatHasSettledHoldsNobodyBack) {
  const Plan plan = UnevenPlan(3);
  PsGroup group(NewInProcessLink(), 3, 2, Under("ssp:0"));
  RunRanks(3, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    Join(*sync, plan);
    for (int64_t s = 1; s <= 5 * rank; ++s) ASSERT_EQ(RunStep(*sync, plan, s), absl::OkStatus());
    ASSERT_EQ(sync->Settle(Soon()), absl::OkStatus());
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(ConsistencyTest, ALogOfAFewStepsKeepsAllRulesOverGrpc) {
  for (const std::string consistency : {"ssp:0", "ssp:1", "asp"}) {
    StalenessJob job;
    job.consistency = consistency;
    job.steps = {30, 20, 30};
    job.servers = 2;
    job.phases = 2;
    job.link = NewGrpcLink();
    const StalenessResult result = RunStalenessJob(job);
    if (consistency == "asp") {
      EXPECT_EQ(result.waits, 0);
    }
  }
}

TEST(ConsistencyTest, OneWorkerIsNeverStale) {
  StalenessJob job;
  job.consistency = "ssp:0";
  job.steps = {10};
  job.servers = 3;
  job.link = NewInProcessLink();
  EXPECT_EQ(RunStalenessJob(job).histogram, (std::vector<int64_t>{10}));
}

TEST(ConsistencyTest, ValuesThatDifferAreBothNamedOnEveryRank) {
  const Plan plan = UnevenPlan(2);
  const std::pair<std::string, std::string> pairs[] = {
      {"bsp", "asp"}, {"ssp:1", "ssp:2"}, {"ssp:0", "bsp"}};
  for (const auto& [first, second] : pairs) {
    PsGroup group(NewInProcessLink(), 2, 1, Under(first));
    RunRanks(2, [&](int rank) {
      const std::unique_ptr<GradientSync> sync =
          group.Worker(rank, *ParseConsistency(rank == 0 ? first : second));
      const absl::Status status = sync->Bind(plan, Soon()).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      for (const std::string& name : {first, second}) {
        EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("has ", name))) << status;
      }
    });
    const absl::Status ended = group.server(0).Wait();
    EXPECT_TRUE(absl::IsFailedPrecondition(ended)) << ended;
  }
}

// A server that heard of a worker's end before it had heard both hellos reported that the worker
// was lost, not why.
TEST(ConsistencyTest, AServerThatIsSlowToHearReportsTheDifferenceTooNotAWorkerThatLeft) {
  const Plan plan = UnevenPlan(2);
  for (int seed = 1; seed <= 10; ++seed) {
    InProcessLinkOptions slow;
    slow.max_delay = absl::Milliseconds(20);
    slow.seed = seed;
    PsGroup group(NewInProcessLink(slow), 2, 2, Under("bsp"));
    RunRanks(2, [&](int rank) {
      const std::unique_ptr<GradientSync> sync =
          group.Worker(rank, *ParseConsistency(rank == 0 ? "bsp" : "asp"));
      EXPECT_FALSE(sync->Bind(plan, Soon()).ok());
    });
    for (int server : {0, 1}) {
      const absl::Status ended = group.server(server).Wait();
      EXPECT_TRUE(absl::IsFailedPrecondition(ended)) << ended;
      EXPECT_TRUE(absl::StrContains(ended.message(), "consistency differs: rank ")) << ended;
    }
  }
}

TEST(ConsistencyTest, ClippingIsRefusedInTheHandle) {
  const Plan plan = UnevenPlan(1);
  PsGroup group(NewInProcessLink(), 1, 1, Under("ssp:1"));
  const std::unique_ptr<GradientSync> sync = group.Worker(0);
  Join(*sync, plan);
  const absl::Status status = RunStep(*sync, plan, 1, /*max_norm=*/1);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "max_norm")) << status;
}

TEST(ConsistencyTest, WindowsAndUpdateAtTheWorkerAreRefused) {
  PsOptions windows = Under("asp");
  windows.windows = true;
  PsOptions worker = Under("asp");
  worker.update_site = UpdateSite::kWorker;
  for (PsOptions options : {windows, worker}) {
    options.group.world_size = 1;
    options.servers = {"127.0.0.1:1"};
    options.link = NewInProcessLink();
    EXPECT_TRUE(absl::IsInvalidArgument(CheckPsOptions(options).status()) ||
                absl::IsInvalidArgument(CreatePsGradientSync(options).status()));
  }
}

TEST(ConsistencyTest, OptimizerStateComesAfterAllHaveSettledAndGoesBack) {
  const Plan plan = UnevenPlan(2);
  PsGroup group(NewInProcessLink(), 2, 2, Under("asp"));
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    Join(*sync, plan);
    const int64_t steps = rank == 0 ? 3 : 7;
    for (int64_t s = 1; s <= steps; ++s) ASSERT_EQ(RunStep(*sync, plan, s), absl::OkStatus());
    const absl::StatusOr<OptimizerState> state = sync->ExportOptimizerState(Soon());
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 7);
    EXPECT_EQ(state->slots.size(), plan.tensors().size());
    ASSERT_EQ(sync->ImportOptimizerState(*state, Soon()), absl::OkStatus());
    ASSERT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    ASSERT_EQ(RunStep(*sync, plan, 8), absl::OkStatus());
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(ConsistencyTest, AWorkerThatDiesEndsTheRunForThoseWhoWaitForIt) {
  const Plan plan = UnevenPlan(2);
  PsGroup group(NewInProcessLink(), 2, 1, Under("ssp:0"));
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    Join(*sync, plan);
    if (rank == 1) return sync->Abort(absl::DataLossError("broken"));
    EXPECT_FALSE(RunStep(*sync, plan, 1).ok());
  });
}

}  // namespace
}  // namespace gradsync
