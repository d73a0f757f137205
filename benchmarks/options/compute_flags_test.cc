#include "benchmarks/options/compute_flags.h"

#include "allreduce/open_nccl.h"
#include "core/gpu/open_gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::Status TwoGpus(int device) {
  return device < 2 ? absl::OkStatus() : absl::InvalidArgumentError("no such GPU");
}
absl::Status NoGpu(int) { return absl::NotFoundError("this machine shows no GPU"); }

TEST(ComputeFlagsTest, TheCpuUnlessAGpuOrNcclIsAskedFor) {
  EXPECT_EQ(*ResolveDevice("", {Link::kGrpc, Link::kShm}, 8, NoGpu), "cpu");
  EXPECT_EQ(*ResolveDevice("cpu", {}, 8, NoGpu), "cpu");
  EXPECT_EQ(*ResolveDevice("cuda", {}, 2, TwoGpus), "cuda");
  EXPECT_EQ(*ResolveDevice("auto", {}, 2, TwoGpus), "cuda");
  EXPECT_EQ(*ResolveDevice("auto", {}, 2, NoGpu), "cpu");
}

TEST(ComputeFlagsTest, WhatIsMissingIsSaidInTheWordsOfAWorker) {
  EXPECT_EQ(ResolveDevice("cuda", {}, 2, NoGpu).status().message(),
            "--device=cuda: this machine shows no GPU");
  EXPECT_EQ(ResolveDevice("cuda", {}, 3, TwoGpus).status().message(), "--device=cuda: no such GPU");
  EXPECT_THAT(std::string(ResolveDevice("gpu", {}, 1, TwoGpus).status().message()),
              HasSubstr("--device: expected cpu, cuda, cuda:N or auto"));
  const std::string nccl(ResolveDevice("", {Link::kNccl}, 2, NoGpu).status().message());
  const std::string on_cpu(
      ResolveDevice("cpu", {Link::kGrpc, Link::kNccl}, 2, TwoGpus).status().message());
  if (NcclVersion() == 0) {
    EXPECT_THAT(nccl, HasSubstr("--link=nccl: this build has no NCCL: build with"));
    EXPECT_EQ(on_cpu, nccl);
  } else {
    EXPECT_EQ(nccl, "--device=cuda: this machine shows no GPU");
    EXPECT_THAT(on_cpu, HasSubstr("--link=nccl: expected a GPU (--device=cuda), found none"));
    EXPECT_EQ(*ResolveDevice("", {Link::kNccl}, 2, TwoGpus), "cuda");
  }
}

TEST(ComputeFlagsTest, PrecisionsThatTheDeviceOrTheUpdateCannotHaveAreRefused) {
  const auto message = [](const ComputeFlags& flags, UpdateSite update) {
    return std::string(CheckCompute(flags, {update}).message());
  };
  EXPECT_EQ(message({"cpu", Precision::kBf16, true, false}, UpdateSite::kOwner), "");
  EXPECT_EQ(message({"cuda", Precision::kFp16, false, true}, UpdateSite::kWorker), "");
  EXPECT_THAT(message({"cpu", Precision::kFp16, false, false}, UpdateSite::kWorker),
              HasSubstr("--precision: expected"));
  EXPECT_THAT(message({"cuda", Precision::kFp16, false, false}, UpdateSite::kOwner),
              HasSubstr("--update=owner"));
  EXPECT_THAT(message({"cpu", Precision::kFp32, false, true}, UpdateSite::kWorker),
              HasSubstr("--tf32: expected a GPU"));
}

TEST(ComputeFlagsTest, WorkersGetWhatDiffersFromTheirDefaults) {
  EXPECT_THAT(WorkerComputeFlags({"cpu", Precision::kFp32, false, false}), IsEmpty());
  EXPECT_THAT(WorkerComputeFlags({"cuda:1", Precision::kBf16, true, true}),
              ElementsAre("--device=cuda:1", "--precision=bf16", "--channels_last", "--tf32"));
}

}  // namespace
}  // namespace gradsync
