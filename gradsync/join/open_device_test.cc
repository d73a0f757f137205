#include "gradsync/join/open_device.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/gpu/fake_gpu.h"
#include "core/gpu/open_gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// A machine with two GPUs.
absl::StatusOr<std::shared_ptr<GpuApi>> OpenOneOfTwo(int device) {
  if (device > 1) return absl::InvalidArgumentError("expected a GPU below 2");
  return std::make_shared<FakeGpu>(device);
}

absl::StatusOr<std::shared_ptr<GpuApi>> NoGpu(int) { return absl::NotFoundError("no GPU here"); }
absl::StatusOr<std::shared_ptr<GpuApi>> NoCuda(int) {
  return absl::FailedPreconditionError("no CUDA here");
}
absl::StatusOr<std::shared_ptr<GpuApi>> Broken(int) { return absl::InternalError("broken"); }

DeviceOptions Flag(const std::string& device, absl::optional<int> local_rank = absl::nullopt) {
  return {device, local_rank};
}

TEST(OpenDeviceTest, CpuOpensNothing) {
  const auto device = OpenDevice(Flag("cpu", 1), 2, Broken);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(*device, nullptr);
  EXPECT_EQ(DescribeDevice(device->get()), "cpu");
}

TEST(OpenDeviceTest, EachLocalRankHasItsGpuAndANumberWins) {
  for (const std::string flag : {"cuda", "auto"}) {
    EXPECT_EQ((*OpenDevice(Flag(flag, 1), 8, OpenOneOfTwo))->device(), 1);
    EXPECT_EQ((*OpenDevice(Flag(flag), 1, OpenOneOfTwo))->device(), 0);
  }
  const auto device = OpenDevice(Flag("cuda:0", 1), 8, OpenOneOfTwo);
  EXPECT_EQ((*device)->device(), 0);
  EXPECT_EQ(DescribeDevice(device->get()), "fake:0 (fake)");
}

TEST(OpenDeviceTest, AutoTakesTheCpuWhereThereIsNoGpuAndCudaDoesNot) {
  for (const auto open : {NoGpu, NoCuda}) {
    EXPECT_EQ(*OpenDevice(Flag("auto", 0), 2, open), nullptr);
    EXPECT_EQ(*OpenDevice(Flag("auto"), 2, open), nullptr);
    const absl::Status refused = OpenDevice(Flag("cuda", 0), 2, open).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--device=cuda: no "));
  }
}

TEST(OpenDeviceTest, AGpuThatIsMissingOrBrokenIsAnErrorUnderAutoToo) {
  EXPECT_TRUE(absl::IsInvalidArgument(OpenDevice(Flag("auto", 2), 4, OpenOneOfTwo).status()));
  EXPECT_TRUE(absl::IsInternal(OpenDevice(Flag("auto", 0), 1, Broken).status()));
}

TEST(OpenDeviceTest, WorkersThatDoNotKnowTheirPlaceAreAskedForIt) {
  const absl::Status refused = OpenDevice(Flag("cuda"), 2, OpenOneOfTwo).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--local_rank"));
}

TEST(OpenDeviceTest, WhatAllWorkersOfAHostWouldChooseIsKnownWithoutOpening) {
  const GpuChecker two = [](int device) { return OpenOneOfTwo(device).status(); };
  EXPECT_EQ(*ChooseDevice("cpu", 4, two), "cpu");
  EXPECT_EQ(*ChooseDevice("cuda", 2, two), "cuda");
  EXPECT_EQ(*ChooseDevice("auto", 2, two), "cuda");
  EXPECT_EQ(*ChooseDevice("cuda:1", 4, two), "cuda:1");
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseDevice("cuda", 3, two).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseDevice("auto", 3, two).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseDevice("gpu", 1, two).status()));
  for (const auto check : {NoGpu, NoCuda}) {
    EXPECT_EQ(*ChooseDevice("auto", 2, [&](int n) { return check(n).status(); }), "cpu");
    // In the words of the workers.
    EXPECT_EQ(ChooseDevice("cuda", 2, [&](int n) { return check(n).status(); }).status(),
              OpenDevice(Flag("cuda", 1), 2, check).status());
  }
}

TEST(OpenDeviceTest, OtherValuesAreRefused) {
  for (const std::string flag : {"gpu", "cuda:", "cuda:-1", "cuda:1x", ""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ValidateDevice(Flag(flag)))) << flag;
  }
  EXPECT_TRUE(ValidateDevice(Flag("cuda:7")).ok());
}

TEST(OpenDeviceTest, ABuildWithoutCudaSaysHowToGetIt) {
  const auto gpu = OpenGpu(0);
  if (gpu.ok() || !absl::IsFailedPrecondition(gpu.status())) GTEST_SKIP() << "a build with CUDA";
  EXPECT_THAT(std::string(gpu.status().message()), HasSubstr("--config=cuda"));
}

}  // namespace
}  // namespace gradsync
