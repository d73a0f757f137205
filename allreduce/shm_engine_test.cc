// One rank's engine, with the other rank played by hand, one thing after the other.
#include "allreduce/shm_engine.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/shared_memory/await_asleep.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_layout.h"
#include "core/shared_memory/window_owner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

Plan MakePlan() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {64}, {1}, 0}, {"b", {40}, {1}, 0}}, {{0}, {1}}, optimizer,
                            /*world_size=*/2, /*chunk_bytes=*/64);
}

StepOptions Step(int64_t number, double lr = 0.1) {
  StepOptions step;
  step.step = number;
  step.lr = lr;
  return step;
}

class ShmEngineTest : public ::testing::Test {
 protected:
  ShmEngineTest()
      : plan_(MakePlan()),
        group_(std::make_shared<const WindowGroup>(plan_)),
        windows_{*Window::Create(group_->Layout(0).bytes()),
                 *Window::Create(group_->Layout(1).bytes())},
        other_windows_(group_, 1, windows_),
        other_(&other_windows_, nullptr) {
    for (int rank : {0, 1}) {
      for (int bucket : {0, 1}) {
        for (int64_t i = 0; i < plan_.buckets()[bucket].numel; ++i) {
          Grad(rank, bucket)[i] = static_cast<float>(1 + rank);
        }
      }
    }
  }

  ShmEngineOptions Options() {
    ShmEngineOptions options;
    options.group = group_;
    options.rank = 0;
    options.windows = windows_;
    options.report = [this](absl::Status status) { reported_.Resolve(std::move(status)); };
    return options;
  }

  float* Grad(int rank, int bucket) {
    return reinterpret_cast<float*>(windows_[rank]->data() +
                                    group_->Layout(rank).grad_offset(bucket));
  }

  // With this rank's engine, whose process has a core for each rank.
  ShmEngine& Start(bool shares_cores = false) {
    ShmEngineOptions options = Options();
    options.shares_cores = shares_cores;
    return engine_.emplace(std::move(options));
  }

  // Launches of bucket 0, then 1, as rank 1 would announce them.
  void OtherLaunches(const StepOptions& step, uint32_t launches) {
    other_windows_.signals().SetNote(NoteOf(step));
    const bool last = other_windows_.signals().Publish(WindowControl::kReady, launches);
    if (last) other_windows_.signals().RingOwners();
  }

  // Rank 1 does its part of as many launches.
  void OtherReduces(int64_t launches) {
    while (other_.reduced() < launches) ASSERT_EQ(other_.Reduce(false), absl::OkStatus());
  }

  static bool IsOpen(const SyncHandle& handle) {
    return absl::IsDeadlineExceeded(handle.Wait(Deadline::In(absl::Milliseconds(50))));
  }

  const Plan plan_;
  const std::shared_ptr<const WindowGroup> group_;
  const std::vector<std::shared_ptr<Window>> windows_;
  SyncPromise reported_{"a report"};
  GroupWindows other_windows_;
  WindowOwner other_;
  absl::optional<ShmEngine> engine_;
};

TEST_F(ShmEngineTest, NothingIsFoldedBeforeAllRanksAreReady) {
  const SyncHandle handle = Start().Launch(Step(1), 0);
  EXPECT_TRUE(IsOpen(handle));
  EXPECT_FALSE(other_windows_.Done(0, 1));
  EXPECT_EQ(Grad(1, 0)[0], 2.0f);
}

TEST_F(ShmEngineTest, AHandleIsOpenUntilAllOwnersAreDone) {
  const SyncHandle handle = Start().Launch(Step(1), 0);
  OtherLaunches(Step(1), 1);
  EXPECT_TRUE(IsOpen(handle));
  // This rank's part is done: the even chunks, in both windows.
  for (int rank : {0, 1}) {
    EXPECT_EQ(Grad(rank, 0)[0], 1.5f);
    EXPECT_EQ(Grad(rank, 0)[16], static_cast<float>(1 + rank));
  }
  OtherReduces(1);
  EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
}

TEST_F(ShmEngineTest, RanksThatShareCoresDoTheChunksOfOthers) {
  const SyncHandle handle = Start(/*shares_cores=*/true).Launch(Step(1), 0);
  OtherLaunches(Step(1), 1);
  EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
  for (int rank : {0, 1}) {
    for (int64_t i = 0; i < plan_.buckets()[0].numel; ++i) ASSERT_EQ(Grad(rank, 0)[i], 1.5f);
  }
  // Nothing is left for rank 1 then.
  OtherReduces(1);
  EXPECT_EQ(Grad(1, 0)[16], 1.5f);
}

TEST_F(ShmEngineTest, TheLastRankToLaunchASmallBucketDoesItAtOnce) {
  OtherLaunches(Step(1), 1);
  Start();
  AwaitThreadAsleep(*windows_[0]);
  EXPECT_TRUE(engine_->Launch(Step(1), 0).done());
  EXPECT_EQ(Grad(1, 0)[16], 1.5f);
}

TEST_F(ShmEngineTest, ASmallBucketDoneAtOnceLeavesEarlierOnesToTheirOwners) {
  const SyncHandle first = Start().Launch(Step(1), 0);
  OtherLaunches(Step(1), 1);
  EXPECT_TRUE(IsOpen(first));  // this rank has done its part while it waited
  OtherLaunches(Step(1), 2);
  AwaitThreadAsleep(*windows_[0]);
  // Rank 1 is still to do its part of bucket 0, and finds bucket 1 done.
  EXPECT_EQ(engine_->Launch(Step(1), 1).Wait(Deadline::Now()).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Grad(1, 1)[16], 1.5f);
  OtherReduces(2);
  EXPECT_EQ(first.Wait(Soon()), absl::OkStatus());
  EXPECT_EQ(Grad(1, 0)[16], 1.5f);
}

TEST_F(ShmEngineTest, BucketsResolveOneByOne) {
  const SyncHandle first = Start().Launch(Step(1), 0);
  const SyncHandle second = engine_->Launch(Step(1), 1);
  OtherLaunches(Step(1), 2);
  OtherReduces(1);
  EXPECT_EQ(first.Wait(Soon()), absl::OkStatus());
  EXPECT_TRUE(IsOpen(second));
  OtherReduces(2);
  EXPECT_EQ(second.Wait(Soon()), absl::OkStatus());
}

TEST_F(ShmEngineTest, RanksThatDisagreeOnTheStepAreReportedAndNothingIsFolded) {
  const SyncHandle handle = Start().Launch(Step(1, 0.1), 0);
  OtherLaunches(Step(1, 0.2), 1);
  const absl::Status reported = reported_.handle().Wait(Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(reported)) << reported;
  EXPECT_THAT(std::string(reported.message()), HasSubstr("rank 1 has step 1 (lr 0.2"));
  EXPECT_EQ(Grad(1, 0)[0], 2.0f);
  EXPECT_TRUE(IsOpen(handle));
  engine_->Fail(reported);
  EXPECT_EQ(handle.Wait(Soon()), reported);
}

TEST_F(ShmEngineTest, FailResolvesWhatIsOpenAndWhatComesLater) {
  const SyncHandle handle = Start().Launch(Step(1), 0);
  engine_->Fail(absl::AbortedError("over"));
  EXPECT_EQ(handle.Wait(Soon()), absl::AbortedError("over"));
  EXPECT_EQ(engine_->Launch(Step(1), 1).Wait(Soon()), absl::AbortedError("over"));
}

}  // namespace
}  // namespace gradsync
