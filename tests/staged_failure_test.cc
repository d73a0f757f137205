// What a failing GPU does to a group whose exchanges pass through the host.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/links/in_process_stream.h"
#include "core/sync/staged_sync.h"
#include "gtest/gtest.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/ring_group.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

// What a rank's own status and its peer's must be when a call of rank 0's GPU failed with
// `failure`.
void ExpectFirstCause(int rank, const absl::Status& status, const absl::Status& failure) {
  if (rank == 0) {
    EXPECT_EQ(status, failure);
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), failure.message())) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 0")) << status;
  }
}

// Where both ranks wait for each other.
class Meeting {
 public:
  void Arrive() {
    MutexLock lock(&mutex_);
    ++here_;
    changed_.SignalAll();
    while (here_ < 2) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int here_ ABSL_GUARDED_BY(mutex_) = 0;
};

using Create = std::function<std::unique_ptr<GradientSync>(int rank)>;

// In step 2 a call of rank 0's GPU fails: the next one when the step begins, or, where `late`, the
// first when a result comes back.
void RunWithAFailure(const Create& create, const std::string& method, bool late) {
  SCOPED_TRACE(absl::StrCat(method, late ? ", late" : ""));
  const absl::Status failure = absl::InternalError(absl::StrCat("the GPU has no ", method));
  const Plan plan = UnevenPlan(2);
  Notification armed;
  Meeting first_step;  // a rank may be done with it while the other is not
  RunRanks(2, [&](int rank) {
    const auto gpu = std::make_shared<FakeGpu>();
    {
      const std::unique_ptr<GradientSync> sync = CreateStagedSync(create(rank), gpu);
      EXPECT_TRUE(sync->Bind(plan, Soon()).ok());
      EXPECT_TRUE(RunStep(*sync, plan, 1).ok());
      first_step.Arrive();
      StepOptions step;
      step.step = 2;
      step.lr = 0.1;
      std::vector<SyncHandle> handles;
      if (rank == 0 && !late) gpu->FailNext(method, failure);
      if (rank == 1) armed.WaitForNotification();
      handles = LaunchStep(*sync, plan.buckets().size(), step);
      if (rank == 0 && late) gpu->FailNext(method, failure);
      if (rank == 0) armed.Notify();
      absl::Status seen = WaitForAll(handles);
      // Who has its results before the other fails hears of that in the next collective call.
      if (seen.ok() && late && rank == 1) seen = sync->Shutdown(Soon());
      ExpectFirstCause(rank, seen, failure);
      ExpectFirstCause(rank, sync->status(), failure);
      ExpectFirstCause(rank, sync->Shutdown(Soon()), failure);
    }
    EXPECT_EQ(gpu->live_objects(), 0);
  });
}

TEST(StagedFailureTest, UnderARingTheFirstCauseIsEverybodys) {
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    const auto run = [site](const std::string& method, bool late) {
      RingOptions options;
      options.link = NewInProcessLink();
      options.update_site = site;
      const RingGroup group(2, options);
      RunWithAFailure([&](int rank) { return group.Create(rank); }, method, late);
    };
    for (const std::string method : {"Record", "StreamWait", "Copy", "RunOnHost"}) {
      run(method, /*late=*/false);
    }
    for (const std::string method : {"Record", "Copy"}) run(method, /*late=*/true);
  }
}

TEST(StagedFailureTest, UnderParameterServersTheFirstCauseIsEverybodys) {
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    const auto run = [site](const std::string& method, bool late) {
      PsOptions options;
      options.update_site = site;
      const PsGroup group(NewInProcessLink(), 2, 2, options);
      RunWithAFailure([&](int rank) { return group.Worker(rank); }, method, late);
    };
    for (const std::string method : {"Record", "StreamWait", "Copy", "RunOnHost"}) {
      run(method, /*late=*/false);
    }
    for (const std::string method : {"Record", "Copy"}) run(method, /*late=*/true);
  }
}

TEST(StagedFailureTest, ABroadcastWhoseCopyFailsEndsTheGroup) {
  const Plan plan = UnevenPlan(2);
  const absl::Status failure = absl::InternalError("the GPU has no Copy");
  const RingGroup group(2, [] {
    RingOptions options;
    options.link = NewInProcessLink();
    return options;
  }());
  RunRanks(2, [&](int rank) {
    const auto gpu = std::make_shared<FakeGpu>();
    const std::unique_ptr<GradientSync> sync = CreateStagedSync(group.Create(rank), gpu);
    ASSERT_TRUE(sync->Bind(plan, Soon()).ok());
    if (rank == 0) gpu->FailNext("Copy", failure);
    ExpectFirstCause(rank, sync->BroadcastParameters(Soon()), failure);
  });
}

}  // namespace
}  // namespace gradsync
