#include "allreduce/nccl_watchdog.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "allreduce/fake_nccl.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/gpu/gpu_resources.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// One rank of two, with a communicator of its own alone: the watchdog only asks for its state.
class Rank {
 public:
  Rank(int rank, std::shared_ptr<KeyValueStore> store, absl::Duration timeout,
       absl::Duration grace = absl::Seconds(60))
      : gpu(std::make_shared<QueuedGpu>()),
        nccl(std::make_shared<FakeNccl>(std::make_shared<FakeNcclNetwork>(), gpu)),
        communicator(nccl, 0, 1),
        stream(*ScopedStream::Create(gpu)),
        outcome(std::make_shared<NcclOutcome>(nullptr)) {
    NcclUniqueId id;
    EXPECT_EQ(nccl->GetUniqueId(&id), NcclResult::kSuccess);
    EXPECT_EQ(communicator.Init(id, Soon()), absl::OkStatus());
    NcclWatchdogOptions options;
    options.group.rank = rank;
    options.group.world_size = 2;
    options.group.run_id = "watchdog";
    options.group.store = std::move(store);
    options.group.timeout = timeout;
    options.communicator = &communicator;
    options.grace = grace;
    options.interval = absl::Milliseconds(1);
    watchdog = std::make_unique<NcclWatchdog>(options, [this](absl::Status status) {
      failure = std::move(status);
      failed.Notify();
    });
  }
  ~Rank() {
    go.Notify();
    watchdog.reset();
  }

  // Launches and watches work, whose parts wait for each other and for what was blocked before.
  void Add(int64_t step, int bucket) {
    watchdog->Launched(step, bucket);
    auto work = *NcclWork::Create(gpu, outcome);
    ASSERT_TRUE(work->RecordReady().ok());
    ASSERT_TRUE(work->StartAfterReady(stream.get()).ok());
    ASSERT_TRUE(work->RecordDone(stream.get()).ok());
    watchdog->Watch(step, bucket, std::move(work));
  }
  void Block(GpuStream which) {
    gpu->Enqueue(which, [this] { go.WaitForNotification(); });
  }
  const absl::Status& AwaitFailure() {
    failed.WaitForNotification();
    return failure;
  }

  Notification go;
  const std::shared_ptr<QueuedGpu> gpu;
  const std::shared_ptr<FakeNccl> nccl;
  NcclCommunicator communicator;
  ScopedStream stream;
  const std::shared_ptr<NcclOutcome> outcome;
  Notification failed;
  absl::Status failure;
  std::unique_ptr<NcclWatchdog> watchdog;
};

class NcclWatchdogTest : public testing::Test {
 protected:
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
};

TEST_F(NcclWatchdogTest, WorkThatGetsDoneIsNoFailure) {
  Rank rank(0, store_, absl::Seconds(60));
  for (int b = 0; b < 5; ++b) rank.Add(1, b);
  EXPECT_EQ(rank.watchdog->Drain(Soon()), absl::OkStatus());
  EXPECT_FALSE(rank.failed.HasBeenNotified());
}

TEST_F(NcclWatchdogTest, OverdueWorkNamesTheRankThatHasNotComeToIt) {
  Rank late(1, store_, absl::Seconds(60));
  late.Add(3, 0);
  EXPECT_EQ(late.watchdog->Drain(Soon()), absl::OkStatus());
  Rank rank(0, store_, absl::Milliseconds(300));
  rank.Add(3, 0);
  rank.Block(rank.stream.get());
  rank.Add(3, 1);
  rank.Add(3, 2);
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 0, bucket 1 of step 3")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 has come to bucket 0 of step 3"))
      << status;
  EXPECT_FALSE(late.failed.HasBeenNotified());
}

TEST_F(NcclWatchdogTest, ARankWhoseGradientIsNotThereHasNotComeToIt) {
  Rank late(1, store_, absl::Milliseconds(300), /*grace=*/absl::Milliseconds(20));
  late.Add(3, 0);
  EXPECT_EQ(late.watchdog->Drain(Soon()), absl::OkStatus());
  late.Block(late.gpu->ComputeStream());
  late.Add(3, 1);
  // Its own work is not overdue, however long that takes: it could not begin.
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(late.watchdog->Drain(Deadline::In(absl::Milliseconds(700)))));
  EXPECT_FALSE(late.failed.HasBeenNotified());
  Rank rank(0, store_, absl::Milliseconds(20));
  rank.Block(rank.stream.get());
  rank.Add(3, 1);
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 has come to bucket 0 of step 3"))
      << status;
}

TEST_F(NcclWatchdogTest, ARankThatDoesNotAnswerIsNamed) {
  Rank rank(0, store_, absl::Milliseconds(20), /*grace=*/absl::Milliseconds(20));
  rank.Block(rank.stream.get());
  rank.Add(1, 0);
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 does not answer")) << status;
}

TEST_F(NcclWatchdogTest, WhenAllHaveComeNobodyIsNamed) {
  Rank other(1, store_, absl::Seconds(60));
  other.Block(other.stream.get());
  other.Add(1, 0);
  Rank rank(0, store_, absl::Milliseconds(20));
  rank.Block(rank.stream.get());
  rank.Add(1, 0);
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_TRUE(absl::StrContains(status.message(), "all ranks have begun it")) << status;
}

TEST_F(NcclWatchdogTest, AnAsynchronousErrorIsFoundWhileWorkIsQueued) {
  Rank other(1, store_, absl::Seconds(60));
  Rank rank(0, store_, absl::Seconds(60));
  rank.Block(rank.stream.get());
  rank.Add(1, 0);
  rank.nccl->Break(NcclResult::kRemoteError, "connection closed by peer");
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "connection closed by peer")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 has come to no bucket")) << status;
}

TEST_F(NcclWatchdogTest, AnErrorOfTheGpuIsFound) {
  Rank other(1, store_, absl::Seconds(60));
  Rank rank(0, store_, absl::Seconds(60));
  rank.Block(rank.stream.get());
  rank.Add(1, 0);
  rank.gpu->FailNext("Done", absl::InternalError("cudaErrorIllegalAddress"));
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_TRUE(absl::StrContains(status.message(), "cudaErrorIllegalAddress")) << status;
  EXPECT_EQ(rank.watchdog->Drain(Soon()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclWatchdogTest, AFailedCallGetsTheSameExplanation) {
  Rank other(1, store_, absl::Seconds(60));
  Rank rank(0, store_, absl::Seconds(60));
  rank.watchdog->Launched(2, 4);
  rank.watchdog->Fail(absl::DeadlineExceededError("still in progress"));
  const absl::Status& status = rank.AwaitFailure();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 has come to no bucket")) << status;
}

}  // namespace
}  // namespace gradsync
