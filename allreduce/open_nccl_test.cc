#include "allreduce/open_nccl.h"

#include "absl/status/status.h"
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
