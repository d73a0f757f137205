#include "allreduce/open_nccl.h"

#ifdef GRADSYNC_CUDA
#include <nccl.h>
#endif

#include <cstring>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "allreduce/nccl_communicator.h"
#include "core/base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// No test here needs a GPU; GRADSYNC_CUDA says which of the two builds this is.
#ifdef GRADSYNC_CUDA

TEST(OpenNcclTest, TheLibraryThatIsLoadedHasSymmetricMemoryAndRegistration) {
  EXPECT_GE(NcclVersion(), 22809);
  EXPECT_LT(NcclVersion(), 30000);
}

TEST(OpenNcclTest, WhatCudaRefusesIsAnErrorOfCuda) {
  // No host has so many GPUs.
  const auto nccl = OpenNccl(100, "NCCL_ALGO=Ring");
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_EQ((*nccl)->version(), NcclVersion());
  EXPECT_EQ((*nccl)->algorithm(), "NCCL_ALGO=Ring");
  void* memory = &memory;
  EXPECT_EQ((*nccl)->MemAlloc(16, &memory), NcclResult::kUnhandledCudaError);
  EXPECT_EQ(memory, nullptr);
  NcclComm comm = reinterpret_cast<NcclComm>(&comm);
  EXPECT_EQ((*nccl)->InitRank(1, NcclUniqueId{}, 0, &comm), NcclResult::kUnhandledCudaError);
  EXPECT_EQ(comm, nullptr);
}

TEST(OpenNcclTest, UniqueIdsDifferAndNeedNoGpu) {
  const auto nccl = *OpenNccl(100, "");
  NcclUniqueId ids[2] = {};
  for (NcclUniqueId& id : ids) ASSERT_EQ(nccl->GetUniqueId(&id), NcclResult::kSuccess);
  EXPECT_NE(ids[0], NcclUniqueId{});
  EXPECT_NE(ids[0], ids[1]);
}

TEST(OpenNcclTest, ARefusedInitIsAStatusOfOneLine) {
  NcclCommunicator communicator(*OpenNccl(100, ""), /*rank=*/0, /*world_size=*/1);
  const absl::Status status = communicator.Init(NcclUniqueId{}, Deadline::In(absl::Seconds(60)));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("NCCL at rank 0, ncclCommInitRankConfig: ncclUnhandledCudaError"));
  EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
  EXPECT_EQ(communicator.Abort(absl::Seconds(60)), absl::OkStatus());
}

TEST(OpenNcclTest, WhatNcclSaysOfAnErrorIsOneLine) {
  const auto nccl = *OpenNccl(100, "");
  NcclUniqueId id = {};
  ASSERT_EQ(nccl->GetUniqueId(&id), NcclResult::kSuccess);
  // NCCL itself refuses: the rank is none of the world's.
  ncclUniqueId unique_id;
  std::memcpy(unique_id.internal, id.data(), id.size());
  ncclComm_t comm = nullptr;
  EXPECT_NE(ncclCommInitRank(&comm, /*nranks=*/1, unique_id, /*rank=*/7), ncclSuccess);
  EXPECT_FALSE(nccl->LastError(nullptr).empty());
  EXPECT_THAT(nccl->LastError(nullptr), Not(HasSubstr("\n")));
}

TEST(OpenNcclTest, ANegativeNumberIsRefused) {
  const absl::Status status = OpenNccl(-1, "").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("found -1"));
}

#else

TEST(OpenNcclTest, ABuildWithoutCudaSaysHowToMakeOneWithIt) {
  const absl::Status status = OpenNccl(0, "").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("bazel build --config=cuda"));
  EXPECT_THAT(status.message(), HasSubstr("tools/setup --cuda"));
  EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
  EXPECT_EQ(NcclVersion(), 0);
}

#endif

}  // namespace
}  // namespace gradsync
