#include "allreduce/fake_nccl.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/gpu/fake_gpu.h"
#include "core/gpu/gpu_resources.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

struct Rank {
  explicit Rank(const std::shared_ptr<FakeNcclNetwork>& network)
      : gpu(std::make_shared<FakeGpu>()),
        nccl(network, gpu),
        stream(*ScopedStream::Create(gpu)),
        done(*ScopedEvent::Create(gpu)) {}

  NcclResult State() {
    NcclResult state = NcclResult::kInternalError;
    EXPECT_EQ(nccl.AsyncError(comm, &state), NcclResult::kSuccess);
    return state;
  }

  const std::shared_ptr<FakeGpu> gpu;
  FakeNccl nccl;
  NcclComm comm = nullptr;
  ScopedStream stream;
  ScopedEvent done;
};

class FakeNcclTest : public testing::Test {
 protected:
  void SetUp() override {
    NcclUniqueId id;
    ASSERT_EQ(a_.nccl.GetUniqueId(&id), NcclResult::kSuccess);
    ASSERT_EQ(a_.nccl.InitRank(2, id, 0, &a_.comm), NcclResult::kInProgress);
    ASSERT_EQ(a_.State(), NcclResult::kInProgress);
    ASSERT_EQ(b_.nccl.InitRank(2, id, 1, &b_.comm), NcclResult::kInProgress);
    ASSERT_EQ(a_.State(), NcclResult::kSuccess);
  }
  void TearDown() override {
    for (Rank* rank : {&a_, &b_}) {
      if (rank->nccl.live_communicators() == 0) continue;
      EXPECT_EQ(rank->nccl.Abort(rank->comm), NcclResult::kSuccess);
    }
  }

  const std::shared_ptr<FakeNcclNetwork> network_ = std::make_shared<FakeNcclNetwork>();
  Rank a_{network_};
  Rank b_{network_};
  float x_ = 1;
};

TEST_F(FakeNcclTest, TwoThreadsAtOnceAreAMisuse) {
  a_.nccl.Hang("AsyncError");
  std::thread inside([&] { a_.State(); });
  a_.nccl.AwaitCalls("AsyncError", 3);
  EXPECT_EQ(a_.nccl.AllReduce(&x_, &x_, 1, a_.comm, a_.stream.get()), NcclResult::kInvalidUsage);
  a_.nccl.Release();
  inside.join();
  EXPECT_EQ(a_.nccl.misuses().size(), 1u);
}

TEST_F(FakeNcclTest, ACallWhileAnotherIsInProgressIsAMisuse) {
  a_.nccl.StayInProgress(2);
  EXPECT_EQ(a_.nccl.AllReduce(&x_, &x_, 1, a_.comm, a_.stream.get()), NcclResult::kInProgress);
  EXPECT_EQ(a_.nccl.AllReduce(&x_, &x_, 1, a_.comm, a_.stream.get()), NcclResult::kInvalidUsage);
  EXPECT_EQ(a_.nccl.misuses().size(), 1u);
  EXPECT_EQ(a_.State(), NcclResult::kInProgress);
  EXPECT_EQ(a_.State(), NcclResult::kInProgress);
  EXPECT_EQ(a_.State(), NcclResult::kSuccess);
  EXPECT_EQ(a_.nccl.AllReduce(&x_, &x_, 1, a_.comm, a_.stream.get()), NcclResult::kInProgress);
}

TEST_F(FakeNcclTest, ACommunicatorThatIsGoneIsAMisuse) {
  EXPECT_EQ(a_.nccl.Abort(a_.comm), NcclResult::kSuccess);
  EXPECT_EQ(a_.nccl.Abort(a_.comm), NcclResult::kInvalidUsage);
  EXPECT_EQ(b_.nccl.Destroy(b_.comm), NcclResult::kInvalidUsage);  // not finalized
  EXPECT_EQ(a_.nccl.misuses().size(), 1u);
  EXPECT_EQ(b_.nccl.misuses().size(), 1u);
}

TEST_F(FakeNcclTest, MemoryIsFreedAfterItsRegistration) {
  void* memory = nullptr;
  NcclRegistration registration = nullptr;
  ASSERT_EQ(a_.nccl.MemAlloc(64, &memory), NcclResult::kSuccess);
  ASSERT_EQ(a_.nccl.Register(a_.comm, memory, 64, &registration), NcclResult::kSuccess);
  EXPECT_EQ(a_.nccl.MemFree(memory), NcclResult::kInvalidUsage);
  EXPECT_EQ(a_.nccl.Deregister(a_.comm, registration), NcclResult::kSuccess);
  EXPECT_EQ(a_.nccl.MemFree(memory), NcclResult::kSuccess);
}

TEST_F(FakeNcclTest, MemoryThatIsFreedWhileItsCollectiveIsQueuedIsAMisuse) {
  void* memory = nullptr;
  ASSERT_EQ(a_.nccl.MemAlloc(64, &memory), NcclResult::kSuccess);
  ASSERT_EQ(a_.nccl.Broadcast(memory, 64, 0, a_.comm, a_.stream.get()), NcclResult::kSuccess);
  EXPECT_NE(a_.nccl.MemFree(memory), NcclResult::kSuccess);
  EXPECT_EQ(a_.gpu->TakeMisuses().size(), 1u);
}

TEST_F(FakeNcclTest, MessagesOfAGroupMeetInTheirOrder) {
  float to_a[2] = {};
  float to_b[2] = {};
  const float of_a[2] = {1, 2};
  const float of_b[2] = {3, 4};
  const auto exchange = [](Rank& rank, int peer, const float* out, float* in) {
    ASSERT_EQ(rank.nccl.GroupStart(), NcclResult::kSuccess);
    for (int i = 0; i < 2; ++i) {  // each rank begins with another kind
      for (const bool send : {peer == 1, peer == 0}) {
        EXPECT_EQ(send ? rank.nccl.Send(out + i, 4, peer, rank.comm, rank.stream.get())
                       : rank.nccl.Recv(in + i, 4, peer, rank.comm, rank.stream.get()),
                  NcclResult::kSuccess);
      }
    }
    ASSERT_EQ(rank.nccl.GroupEnd(), NcclResult::kSuccess);
  };
  exchange(a_, 1, of_a, to_a);
  exchange(b_, 0, of_b, to_b);
  for (Rank* rank : {&a_, &b_}) ASSERT_TRUE(rank->gpu->SynchronizeDevice().ok());
  EXPECT_EQ(to_a[0], 3);
  EXPECT_EQ(to_a[1], 4);
  EXPECT_EQ(to_b[0], 1);
  EXPECT_EQ(to_b[1], 2);
}

TEST_F(FakeNcclTest, MessagesOutsideOfAGroupKeepTheStreamUntilTheyMeet) {
  float y = 0;
  ASSERT_EQ(a_.nccl.Send(&x_, 4, 1, a_.comm, a_.stream.get()), NcclResult::kSuccess);
  ASSERT_TRUE(a_.gpu->Record(a_.done.get(), a_.stream.get()).ok());
  EXPECT_FALSE(*a_.gpu->Done(a_.done.get()));
  ASSERT_EQ(b_.nccl.Recv(&y, 4, 0, b_.comm, b_.stream.get()), NcclResult::kSuccess);
  ASSERT_TRUE(a_.gpu->Synchronize(a_.done.get()).ok());
  EXPECT_EQ(y, 1);
}

TEST_F(FakeNcclTest, AReceiveOfAnotherSizeNeverEndsButByAbort) {
  float y[2] = {};
  ASSERT_EQ(a_.nccl.Send(&x_, 4, 1, a_.comm, a_.stream.get()), NcclResult::kSuccess);
  ASSERT_EQ(b_.nccl.Recv(y, 8, 0, b_.comm, b_.stream.get()), NcclResult::kSuccess);
  network_->AwaitMismatch();
  for (Rank* rank : {&a_, &b_}) {
    ASSERT_TRUE(rank->gpu->Record(rank->done.get(), rank->stream.get()).ok());
    EXPECT_FALSE(*rank->gpu->Done(rank->done.get()));
    EXPECT_EQ(rank->nccl.Abort(rank->comm), NcclResult::kSuccess);
    ASSERT_TRUE(rank->gpu->Synchronize(rank->done.get()).ok());
  }
  EXPECT_EQ(y[0], 0);
}

TEST_F(FakeNcclTest, CollectivesInAnotherOrderNeverEndButByAbort) {
  ASSERT_EQ(a_.nccl.AllReduce(&x_, &x_, 1, a_.comm, a_.stream.get()), NcclResult::kSuccess);
  ASSERT_EQ(b_.nccl.Broadcast(&x_, 4, 0, b_.comm, b_.stream.get()), NcclResult::kSuccess);
  network_->AwaitMismatch();
  for (Rank* rank : {&a_, &b_}) {
    ASSERT_TRUE(rank->gpu->Record(rank->done.get(), rank->stream.get()).ok());
    EXPECT_FALSE(*rank->gpu->Done(rank->done.get()));
    EXPECT_EQ(rank->nccl.Abort(rank->comm), NcclResult::kSuccess);
    ASSERT_TRUE(rank->gpu->Synchronize(rank->done.get()).ok());
  }
}

}  // namespace
}  // namespace gradsync
