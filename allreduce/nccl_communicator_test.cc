#include "allreduce/nccl_communicator.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "allreduce/fake_nccl.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/gpu/gpu_resources.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// One rank with everything that it has.
struct Rank {
  Rank(const std::shared_ptr<FakeNcclNetwork>& network, int rank, int world_size,
       const NcclPolling& polling = NcclPolling())
      : gpu(std::make_shared<FakeGpu>(rank)),
        nccl(std::make_shared<FakeNccl>(network, gpu)),
        communicator(nccl, rank, world_size, polling),
        stream(*ScopedStream::Create(gpu)),
        done(*ScopedEvent::Create(gpu)) {}
  ~Rank() { EXPECT_TRUE(nccl->misuses().empty()); }

  void AwaitStream() {
    ASSERT_TRUE(gpu->Record(done.get(), stream.get()).ok());
    ASSERT_TRUE(gpu->Synchronize(done.get()).ok());
  }

  const std::shared_ptr<FakeGpu> gpu;
  const std::shared_ptr<FakeNccl> nccl;
  NcclCommunicator communicator;
  ScopedStream stream;
  ScopedEvent done;
};

class NcclCommunicatorTest : public testing::Test {
 protected:
  std::unique_ptr<Rank> MakeRank(int rank = 0, int world_size = 1) {
    return std::make_unique<Rank>(network_, rank, world_size);
  }

  // A group of one, ready.
  std::unique_ptr<Rank> Ready(const NcclPolling& polling = NcclPolling()) {
    auto rank = std::make_unique<Rank>(network_, 0, 1, polling);
    EXPECT_EQ(rank->nccl->GetUniqueId(&id_), NcclResult::kSuccess);
    EXPECT_EQ(rank->communicator.Init(id_, Soon()), absl::OkStatus());
    return rank;
  }

  const std::shared_ptr<FakeNcclNetwork> network_ = std::make_shared<FakeNcclNetwork>();
  NcclUniqueId id_ = {};
};

TEST_F(NcclCommunicatorTest, RanksMeetAddAndPartWhateverIsInProgress) {
  constexpr int kRanks = 3;
  for (int polls : {0, 1, 40}) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < kRanks; ++r) ranks.push_back(MakeRank(r, kRanks));
    ASSERT_EQ(ranks[0]->nccl->GetUniqueId(&id_), NcclResult::kSuccess);
    std::vector<std::thread> threads;
    for (auto& entry : ranks) {
      threads.emplace_back([&, rank = entry.get()] {
        NcclCommunicator& communicator = rank->communicator;
        rank->nccl->StayInProgress(polls);
        const float own = static_cast<float>(1 + rank->gpu->device());
        const auto memory = *GpuMemory::OnDevice(rank->gpu, 8 * sizeof(float));
        float* const x = memory->floats();
        for (int i = 0; i < 6; ++i) x[i] = own * static_cast<float>(i);
        ASSERT_EQ(communicator.Init(id_, Soon()), absl::OkStatus());
        ASSERT_EQ(communicator.Register(x, 8 * sizeof(float)), absl::OkStatus());
        const GpuStream stream = rank->stream.get();
        ASSERT_EQ(communicator.AllReduce("x", x, 6, stream, Soon()), absl::OkStatus());
        // After the sum, also where NCCL needed time to get to it.
        ASSERT_TRUE(rank->gpu->ScaleTwice(x, 6, 2, 1, stream).ok());
        rank->AwaitStream();
        for (int i = 0; i < 6; ++i) EXPECT_EQ(x[i], 12.0f * static_cast<float>(i));
        ASSERT_EQ(communicator.ReduceScatter("x", x, 2, stream, Soon()), absl::OkStatus());
        ASSERT_EQ(communicator.AllGather("x", x, 2 * sizeof(float), stream, Soon()),
                  absl::OkStatus());
        rank->AwaitStream();
        for (int i = 0; i < 6; ++i) EXPECT_EQ(x[i], 36.0f * static_cast<float>(i));
        x[0] = x[1] = own;
        const NcclCommunicator::Range ranges[] = {{x, sizeof(float)}, {x + 1, sizeof(float)}};
        ASSERT_EQ(communicator.Broadcast("x", ranges, 2, stream, Soon()), absl::OkStatus());
        rank->AwaitStream();
        EXPECT_EQ(x[0], 3);
        EXPECT_EQ(x[1], 3);
        using Message = NcclCommunicator::Message;
        const int next = (rank->gpu->device() + 1) % kRanks;
        const int previous = (rank->gpu->device() + kRanks - 1) % kRanks;
        x[0] = own;
        const Message messages[] = {Message::From(previous, x + 1, sizeof(float)),
                                    Message::To(next, x, sizeof(float))};
        ASSERT_EQ(communicator.SendAndReceive("x", messages, stream, Soon()), absl::OkStatus());
        rank->AwaitStream();
        EXPECT_EQ(x[1], static_cast<float>(1 + previous));
        EXPECT_EQ(communicator.Close(Soon()), absl::OkStatus());
        EXPECT_EQ(rank->nccl->live_registrations(), 0);
        EXPECT_EQ(rank->nccl->live_communicators(), 0);
        EXPECT_EQ(rank->nccl->calls("Abort"), 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(NcclCommunicatorTest, ARefusedInitSaysWhatNcclSays) {
  const auto rank = MakeRank(2, 4);
  rank->nccl->FailNext("InitRank", NcclResult::kInvalidUsage);
  const absl::Status status = rank->communicator.Init(id_, Soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 2")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ncclInvalidUsage")) << status;
}

TEST_F(NcclCommunicatorTest, AnInitThatNeverCompletesEndsAtItsDeadlineAndIsAborted) {
  const auto rank = MakeRank();
  rank->nccl->NeverFinishInit();
  const absl::Status status = rank->communicator.Init(id_, Deadline::In(absl::Milliseconds(20)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(rank->communicator.Abort(absl::Seconds(60)), absl::OkStatus());
  EXPECT_EQ(rank->nccl->live_communicators(), 0);
}

TEST_F(NcclCommunicatorTest, AnInterruptEndsAWaitingInit) {
  const auto rank = MakeRank(0, 2);
  std::thread interrupter([&] {
    rank->nccl->AwaitCalls("AsyncError", 3);
    rank->communicator.Interrupt();
  });
  EXPECT_TRUE(absl::IsCancelled(rank->communicator.Init(id_, Soon())));
  interrupter.join();
}

TEST_F(NcclCommunicatorTest, CallsBeforeInitAreRefused) {
  const auto rank = MakeRank();
  EXPECT_TRUE(absl::IsFailedPrecondition(
      rank->communicator.AllReduce("x", nullptr, 0, rank->stream.get(), Soon())));
  EXPECT_EQ(rank->communicator.CheckAsync(), absl::OkStatus());
}

TEST_F(NcclCommunicatorTest, AnAsynchronousErrorIsFoundByAskingAndByTheNextCall) {
  const auto rank = Ready();
  EXPECT_EQ(rank->communicator.CheckAsync(), absl::OkStatus());
  rank->nccl->Break(NcclResult::kRemoteError, "the peer hung up");
  const absl::Status status = rank->communicator.CheckAsync();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the peer hung up")) << status;
  EXPECT_TRUE(absl::IsUnavailable(
      rank->communicator.AllReduce("x", nullptr, 0, rank->stream.get(), Soon())));
}

TEST_F(NcclCommunicatorTest, ACollectiveThatStaysInProgressEndsAtItsDeadline) {
  const auto rank = Ready();
  rank->nccl->StayInProgress(1 << 30);
  const absl::Status status = rank->communicator.AllReduce(
      "bucket 7", nullptr, 0, rank->stream.get(), Deadline::In(absl::Milliseconds(20)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "all-reduce of bucket 7")) << status;
}

// Every non-blocking collective was slept for, also one that NCCL's thread had queued at once.
TEST_F(NcclCommunicatorTest, ACollectiveThatIsQueuedWithinTheSpinIsNotSleptFor) {
  NcclPolling polling;
  polling.now = [] { return MonotonicTime(); };  // however long it takes
  const auto rank = Ready(polling);
  const int asked = rank->nccl->calls("AsyncError");
  rank->nccl->StayInProgress(1000);
  EXPECT_EQ(rank->communicator.AllReduce("x", nullptr, 0, rank->stream.get(), Deadline::Never()),
            absl::OkStatus());
  EXPECT_EQ(rank->nccl->calls("AsyncError") - asked, 1001);
  EXPECT_EQ(rank->communicator.sleeps(), 0);
}

TEST_F(NcclCommunicatorTest, AfterTheSpinItSleepsBetweenTwoLooks) {
  NcclPolling polling;
  MonotonicTime time;
  polling.spin = absl::Microseconds(200);
  polling.now = [&] { return time += absl::Microseconds(50); };
  const auto rank = Ready(polling);
  const int64_t sleeps = rank->communicator.sleeps();
  rank->nccl->StayInProgress(9);
  EXPECT_EQ(rank->communicator.AllReduce("x", nullptr, 0, rank->stream.get(), Deadline::Never()),
            absl::OkStatus());
  // The call and nine looks find it in progress: the first three within 200 us.
  EXPECT_EQ(rank->communicator.sleeps() - sleeps, 7);
}

TEST_F(NcclCommunicatorTest, AnErrorInsideAGroupEndsTheGroup) {
  const auto rank = Ready();
  float x = 1;
  const NcclCommunicator::Range ranges[] = {{&x, sizeof(x)}};
  rank->nccl->FailNext("Broadcast", NcclResult::kInvalidArgument);
  EXPECT_FALSE(rank->communicator.Broadcast("x", ranges, 0, rank->stream.get(), Soon()).ok());
  EXPECT_EQ(rank->nccl->calls("GroupEnd"), 1);
}

TEST_F(NcclCommunicatorTest, AnAbortWaitsForTheCallThatIsInside) {
  const auto rank = Ready();
  rank->nccl->Hang("AllReduce");
  std::thread caller([&] {
    EXPECT_TRUE(rank->communicator.AllReduce("x", nullptr, 0, rank->stream.get(), Soon()).ok());
  });
  rank->nccl->AwaitCalls("AllReduce", 1);
  const absl::Status aborted = rank->communicator.Abort(absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(aborted)) << aborted;
  EXPECT_EQ(rank->nccl->calls("Abort"), 0);
  // Meanwhile nobody else gets in.
  EXPECT_TRUE(
      absl::IsCancelled(rank->communicator.AllReduce("x", nullptr, 0, rank->stream.get(), Soon())));
  EXPECT_EQ(rank->communicator.CheckAsync(), absl::OkStatus());
  rank->nccl->Release();
  caller.join();
  rank->nccl->AwaitCalls("Abort", 1);
}

TEST_F(NcclCommunicatorTest, AnAbortThatHangsIsLeftToItselfWithWhatItNeeds) {
  const auto rank = Ready();
  rank->nccl->Hang("Abort");
  const auto memory = std::make_shared<Notification>();
  const absl::Status aborted =
      rank->communicator.Abort(absl::Milliseconds(20), [memory] { memory->Notify(); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(aborted)) << aborted;
  EXPECT_TRUE(absl::StrContains(aborted.message(), "ncclCommAbort")) << aborted;
  EXPECT_FALSE(memory->HasBeenNotified());
  EXPECT_EQ(rank->communicator.Abort(absl::Seconds(60)), absl::OkStatus());  // only once
  rank->nccl->Release();
  memory->WaitForNotification();
  EXPECT_EQ(rank->nccl->live_communicators(), 0);
}

TEST_F(NcclCommunicatorTest, WhatFollowsAnAbortIsBoundedToo) {
  const auto rank = Ready();
  const auto go = std::make_shared<Notification>();
  const auto over = std::make_shared<Notification>();
  const absl::Status aborted = rank->communicator.Abort(absl::Milliseconds(20), [go, over] {
    go->WaitForNotification();
    over->Notify();
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(aborted)) << aborted;
  EXPECT_TRUE(absl::StrContains(aborted.message(), "the stream is not idle")) << aborted;
  EXPECT_EQ(rank->nccl->live_communicators(), 0);
  go->Notify();
  over->WaitForNotification();
}

TEST_F(NcclCommunicatorTest, AnAbortFreesTheStream) {
  const auto rank = MakeRank(0, 2);
  const auto other = MakeRank(1, 2);
  ASSERT_EQ(rank->nccl->GetUniqueId(&id_), NcclResult::kSuccess);
  std::thread init([&] { ASSERT_TRUE(other->communicator.Init(id_, Soon()).ok()); });
  ASSERT_TRUE(rank->communicator.Init(id_, Soon()).ok());
  init.join();
  float x = 1;
  ASSERT_TRUE(rank->communicator.AllReduce("x", &x, 1, rank->stream.get(), Soon()).ok());
  EXPECT_EQ(rank->communicator.Abort(absl::Seconds(60)), absl::OkStatus());
  rank->AwaitStream();
}

}  // namespace
}  // namespace gradsync
