#include "allreduce/fake_nccl.h"

#include <memory>
#include <thread>
#include <vector>

#include "gpu/fake_gpu.h"
#include "gpu/gpu_resources.h"
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
