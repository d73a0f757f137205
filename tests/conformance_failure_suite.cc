// What every backend does when a rank fails or was given something wrong.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"
#include "tests/conformance_group.h"
#include "tests/conformance_suite.h"

namespace gradsync {

using conformance::Group;
using conformance::Momentum;
using conformance::Rank;
using conformance::Step;
using conformance::UnevenPlan;

namespace {

void ExpectStatus(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << "\nlacks " << text;
}

struct Answer {
  std::string call;
  absl::Status status;
};

// What every call but Bind() and Shutdown() says.
std::vector<Answer> AnswersTo(GradientSync& sync) {
  return {{"Launch", sync.Launch(Step(1), 0).Wait(Soon())},
          {"BroadcastParameters", sync.BroadcastParameters(Soon())},
          {"Settle", sync.Settle(Soon())},
          {"ExportOptimizerState", sync.ExportOptimizerState(Soon()).status()},
          {"ImportOptimizerState", sync.ImportOptimizerState(OptimizerState(), Soon())},
          {"ExportRankState", sync.ExportRankState().status()},
          {"ImportRankState", sync.ImportRankState(RankState())}};
}

void ExpectEach(const std::vector<Answer>& answers, absl::StatusCode code,
                const std::string& text) {
  for (const Answer& answer : answers) {
    SCOPED_TRACE(answer.call);
    ExpectStatus(answer.status, code, text);
  }
}

}  // namespace

TEST_P(ConformanceTest, PlansThatDifferAreRefusedWithBothFingerprints) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  const int odd_one = GetParam().world_size - 1;
  OptimizerSpec other = Momentum();
  other.groups[0].momentum = 0.8;
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  const Plan different = UnevenPlan(GetParam().world_size, other);
  Group group(GetParam());
  group.ForEachRank([&](int rank) {
    auto sync = group.fixture().Create(group.worker(rank));
    ASSERT_TRUE(sync.ok()) << sync.status();
    const absl::Status bound = (*sync)->Bind(rank == odd_one ? different : plan, Soon()).status();
    EXPECT_EQ(bound.code(), absl::StatusCode::kFailedPrecondition) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), plan.fingerprint())) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), different.fingerprint())) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "momentum")) << bound;
  });
}

TEST_P(ConformanceTest, APlanForAnotherWorldSizeIsRefused) {
  Group group(GetParam());
  auto sync = group.fixture().Create(group.worker(0));
  ASSERT_TRUE(sync.ok()) << sync.status();
  const absl::Status bound =
      (*sync)->Bind(UnevenPlan(GetParam().world_size + 1, Momentum()), Soon()).status();
  EXPECT_EQ(bound.code(), absl::StatusCode::kInvalidArgument) << bound;
}

// Some backends failed for good, some answered OK, and each had words of its own.
TEST_P(ConformanceTest, BeforeBindEveryCallIsRefusedAndChangesNothing) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group group(GetParam());
  group.ForEachRank([&](int rank) {
    auto sync = group.fixture().Create(group.worker(rank));
    ASSERT_TRUE(sync.ok()) << sync.status();
    ExpectEach(AnswersTo(**sync), absl::StatusCode::kFailedPrecondition,
               "expected a successful Bind() first");
    ExpectStatus((*sync)->Shutdown(Soon()), absl::StatusCode::kFailedPrecondition,
                 "expected a successful Bind() first");
    EXPECT_EQ((*sync)->status(), absl::OkStatus());
    EXPECT_EQ((*sync)->wire_stats().tx_bytes, 0);
    EXPECT_EQ((*sync)->Bind(plan, Soon()).status(), absl::OkStatus());
    EXPECT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
  });
}

TEST_P(ConformanceTest, ASecondBindIsRefusedAndTheGroupGoesOn) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int, Rank& self) {
             ExpectStatus(self.sync->Bind(plan, Soon()).status(),
                          absl::StatusCode::kFailedPrecondition,
                          "Bind: expected one call, found a second");
             EXPECT_EQ(self.Exchange(Step(1)), absl::OkStatus());
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
}

// A second Shutdown was OK here and CANCELLED there, and Settle() was OK on a backend that had
// left.
TEST_P(ConformanceTest, AfterShutdownEveryCallIsCancelledAndASecondShutdownIsOk) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             ASSERT_EQ(self.Exchange(Step(1)), absl::OkStatus());
             ASSERT_EQ(self.sync->Settle(Soon()), absl::OkStatus());
             ASSERT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
             ExpectEach(AnswersTo(*self.sync), absl::StatusCode::kCancelled,
                        absl::StrCat("rank ", rank, " was shut down"));
             ExpectStatus(self.sync->Bind(plan, Soon()).status(),
                          absl::StatusCode::kFailedPrecondition, "found a second");
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
             self.sync->Abort(absl::DataLossError("too late"));
             EXPECT_EQ(self.sync->status(), absl::OkStatus());
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
}

// Without a status to report, a backend's failure was OK.
TEST_P(ConformanceTest, AbortWithoutAReasonIsCancelled) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  const int culprit = GetParam().world_size - 1;
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             if (rank == culprit) self.sync->Abort(absl::OkStatus());
             ExpectStatus(
                 self.Exchange(Step(1)),
                 rank == culprit ? absl::StatusCode::kCancelled : absl::StatusCode::kAborted,
                 absl::StrCat("rank ", culprit, " aborted without a reason"));
           });
}

// Some backends mixed two steps' gradients, some refused, some with other words.
TEST_P(ConformanceTest, AStepBeforeTheHandlesOfTheOneBeforeIsRefused) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank's handles may resolve at once";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             if (rank != 0) {
               // Launches nothing, so rank 0's exchanges cannot end.
               const Deadline soon = Soon();
               while (self.sync->status().ok() && !soon.passed()) std::this_thread::yield();
               ExpectStatus(self.sync->status(), absl::StatusCode::kAborted, "rank 0");
               return;
             }
             const std::vector<SyncHandle> first =
                 LaunchStep(*self.sync, plan.buckets().size(), Step(1));
             const SyncHandle second = self.sync->Launch(Step(2), 0);
             // On a GPU a handle may resolve when its exchange is queued: then the step may begin.
             // Wait() would go on to wait for that exchange, which cannot end.
             const Deadline soon = Soon();
             while (self.sync->gpu() != nullptr && !second.done() && !soon.passed()) {
               std::this_thread::yield();
             }
             if (self.sync->gpu() != nullptr && self.sync->status().ok()) {
               for (const SyncHandle& handle : first) EXPECT_TRUE(handle.done());
               return self.sync->Abort(absl::CancelledError("nothing was refused"));
             }
             ExpectStatus(second.Wait(Soon()), absl::StatusCode::kFailedPrecondition,
                          "launch of step 2: expected all handles of step 1 to be resolved");
             for (size_t b = 0; self.sync->gpu() == nullptr && b < first.size(); ++b) {
               EXPECT_FALSE(first[b].Wait(Soon()).ok()) << b;
             }
           });
}

// An allocation that failed was written to, or threw.
TEST_P(ConformanceTest, BucketsThatThereIsNoMemoryForAreRefusedWithTheirSize) {
  const int64_t numel = int64_t{1} << 45;  // more than a process can address
  const Plan plan = *Plan::FromBuckets({{"a", {numel}, {1}, 0}}, {{0}}, Momentum(),
                                       GetParam().world_size, /*chunk_bytes=*/int64_t{1} << 40);
  Group group(GetParam());
  group.ForEachRank([&](int rank) {
    auto sync = group.fixture().Create(group.worker(rank));
    ASSERT_TRUE(sync.ok()) << sync.status();
    const absl::Status bound = (*sync)->Bind(plan, Soon()).status();
    // Another rank may have found out first.
    EXPECT_TRUE(absl::IsResourceExhausted(bound) || absl::IsAborted(bound)) << bound;
    EXPECT_TRUE(absl::StrContains(bound.ToString(), "RESOURCE_EXHAUSTED")) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), " bytes")) << bound;
  });
}

TEST_P(ConformanceTest, OutOfOrderLaunchFailsTheWholeGroup) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             if (rank == 0) {
               const absl::Status status = self.sync->Launch(Step(1), 1).Wait(Soon());
               EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
             } else {
               const absl::Status status = self.Exchange(Step(1));
               EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
               EXPECT_TRUE(absl::StrContains(status.message(), "rank 0")) << status;
             }
             EXPECT_FALSE(self.sync->status().ok());
             EXPECT_FALSE(self.sync->Launch(Step(2), 0).Wait(Soon()).ok());
           });
}

TEST_P(ConformanceTest, AbortReachesEveryRankWithItsReason) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  const int culprit = GetParam().world_size / 2;
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             if (rank == culprit) {
               self.sync->Abort(absl::DataLossError("disk on fire"));
             }
             const absl::Status status = self.Exchange(Step(1));
             EXPECT_FALSE(status.ok());
             EXPECT_TRUE(absl::StrContains(status.message(), "disk on fire")) << status;
             EXPECT_EQ(status.code(),
                       rank == culprit ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted);
             EXPECT_EQ(self.sync->status(), status);
           });
}

TEST_P(ConformanceTest, ARankThatLeavesWithoutShutdownFailsTheOthers) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank has nobody to leave";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group group(GetParam());
  group.Run([&](int) { return plan; },
            [&](int rank, Rank& self) {
              ASSERT_EQ(self.Exchange(Step(1)), absl::OkStatus());
              // A rank may have its results while others still wait for theirs.
              group.Meet(rank);
              if (rank == 1) {
                self.sync.reset();
                return;
              }
              const absl::Status status = self.Exchange(Step(2));
              EXPECT_TRUE(absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
              EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
            });
}

// A rank that did one step less than the others left them waiting until their deadlines, and the
// waiting ones were blamed.
TEST_P(ConformanceTest, ARankThatLeavesAStepEarlyIsNamedByAllAtOnce) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank waits for nobody";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  for (const int steps : {0, 2}) {
    SCOPED_TRACE(steps);
    const std::string left = steps == 0
                                 ? "rank 1 has left before its first step, rank "
                                 : absl::StrCat("rank 1 has left after step ", steps, ", rank ");
    Group group(GetParam(), absl::StrCat("/", steps));
    group.Run([&](int) { return plan; },
              [&](int rank, Rank& self) {
                for (int step = 1; step <= steps; ++step) {
                  ASSERT_EQ(self.Exchange(Step(step)), absl::OkStatus());
                }
                // A rank may have its results while others still wait for theirs.
                group.Meet(rank);
                const absl::Status status = rank == 1 ? self.sync->Shutdown(Deadline::Never())
                                                      : self.Exchange(Step(steps + 1));
                EXPECT_TRUE(absl::StrContains(status.message(), left)) << status;
                EXPECT_TRUE(
                    absl::StrContains(status.message(), absl::StrCat(" waits in step ", steps + 1)))
                    << status;
                EXPECT_FALSE(self.sync->status().ok());
              });
  }
}

// Collective calls of the start and the end waited for a rank that had failed until their deadline.
TEST_P(ConformanceTest, AFailureEndsEveryCollectiveCall) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank waits for nobody";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  const std::vector<std::function<absl::Status(GradientSync&)>> calls = {
      [](GradientSync& sync) { return sync.BroadcastParameters(Deadline::Never()); },
      [](GradientSync& sync) { return sync.ExportOptimizerState(Deadline::Never()).status(); },
      [](GradientSync& sync) { return sync.Shutdown(Deadline::Never()); },
  };
  const int culprit = GetParam().world_size - 1;
  for (size_t i = 0; i < calls.size(); ++i) {
    // Elsewhere the state is the caller's, and nobody is asked for it.
    if (i == 1 && GetParam().site != UpdateSite::kOwner) continue;
    SCOPED_TRACE(i);
    Group(GetParam(), absl::StrCat("/", i))
        .Run([&](int) { return plan; },
             [&](int rank, Rank& self) {
               if (rank == culprit) {
                 return self.sync->Abort(absl::DataLossError("disk on fire"));
               }
               const absl::Status status = calls[i](*self.sync);
               EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
               EXPECT_TRUE(absl::StrContains(status.message(), "disk on fire")) << status;
             });
  }
}

TEST_P(ConformanceTest, StateThatDoesNotFitThePlanIsRefused) {
  if (GetParam().site != UpdateSite::kOwner)
    GTEST_SKIP() << "under kWorker the caller has the state";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  OptimizerState state;
  state.step = 1;
  state.slots["a"]["momentum_buffer"] = {1, 2};
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int, Rank& self) {
             const absl::Status status = self.sync->ImportOptimizerState(state, Soon());
             EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
             EXPECT_TRUE(absl::StrContains(status.message(), "expected 3")) << status;
           });
}

TEST_P(ConformanceTest, ARankKeepsNothingWithoutCompressionAndTakesNothing) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int, Rank& self) {
             ASSERT_EQ(self.Exchange(Step(1)), absl::OkStatus());
             const absl::StatusOr<RankState> kept = self.sync->ExportRankState();
             ASSERT_TRUE(kept.ok()) << kept.status();
             EXPECT_TRUE(kept->residuals.empty());
             EXPECT_EQ(self.sync->ImportRankState(*kept), absl::OkStatus());
             RankState other;
             other.residuals["a"] = {1, 2, 3};
             ExpectStatus(self.sync->ImportRankState(other), absl::StatusCode::kInvalidArgument,
                          "keeps none");
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
}

TEST_P(ConformanceTest, RanksThatDisagreeOnTheLearningRateFail) {
  if (GetParam().site != UpdateSite::kOwner) GTEST_SKIP() << "the learning rate is the caller's";
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             EXPECT_FALSE(self.Exchange(Step(1, rank == 1 ? 0.2 : 0.1)).ok());
           });
}

}  // namespace gradsync
