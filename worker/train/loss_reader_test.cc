#include "worker/train/loss_reader.h"

#include <deque>
#include <memory>

#include "ATen/ops/tensor.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A device that has come as far as the test says.
struct Device {
  int done = 0;  // copies that are complete
  int queued = 0;
  int waits = 0;  // for copies that were not complete
  bool failed = false;
};

class FakeScalar : public PendingScalar {
 public:
  FakeScalar(Device* device, double value)
      : device_(device), value_(value), number_(++device->queued) {}

  bool ready() const override {
    TORCH_CHECK(!device_->failed, "device lost");
    return number_ <= device_->done;
  }
  double Wait() override {
    if (!ready()) ++device_->waits;
    return value_;
  }

 private:
  Device* const device_;
  const double value_;
  const int number_;
};

LossReader ReaderOn(Device* device) {
  return LossReader([device](const at::Tensor& t) {
    return std::make_unique<FakeScalar>(device, t.item<float>());
  });
}

TEST(LossReaderTest, OnTheCpuALossIsThereAtOnce) {
  LossReader reader;
  reader.Add(at::tensor({2.5f}).sum().set_requires_grad(true));
  std::deque<double> losses;
  EXPECT_TRUE(reader.Take(100, &losses).ok());
  EXPECT_THAT(losses, ElementsAre(2.5));
}

TEST(LossReaderTest, WithoutLossesThereIsNothingToTake) {
  LossReader reader;
  std::deque<double> losses;
  EXPECT_TRUE(reader.Take(0, &losses).ok());
  EXPECT_THAT(losses, IsEmpty());
}

TEST(LossReaderTest, LossesFollowInOrderAndNobodyWaitsForThem) {
  Device device;
  LossReader reader = ReaderOn(&device);
  std::deque<double> losses;
  for (float loss : {3.f, 2.f, 1.f}) {
    reader.Add(at::tensor({loss}));
    EXPECT_TRUE(reader.Take(3, &losses).ok());
  }
  EXPECT_THAT(losses, IsEmpty());
  device.done = 2;
  EXPECT_TRUE(reader.Take(3, &losses).ok());
  EXPECT_THAT(losses, ElementsAre(3, 2));
  EXPECT_EQ(device.waits, 0);
}

TEST(LossReaderTest, TooManyOnTheirWayAreWaitedForAndInTheEndAll) {
  Device device;
  LossReader reader = ReaderOn(&device);
  std::deque<double> losses;
  for (float loss : {4.f, 3.f, 2.f, 1.f}) reader.Add(at::tensor({loss}));
  EXPECT_TRUE(reader.Take(3, &losses).ok());
  EXPECT_THAT(losses, ElementsAre(4));
  EXPECT_EQ(device.waits, 1);
  EXPECT_TRUE(reader.Take(0, &losses).ok());
  EXPECT_THAT(losses, ElementsAre(4, 3, 2, 1));
  EXPECT_EQ(device.waits, 4);
}

TEST(LossReaderTest, AFailedDeviceIsAnErrorAndNoException) {
  Device device;
  LossReader reader = ReaderOn(&device);
  reader.Add(at::tensor({1.f}));
  device.failed = true;
  std::deque<double> losses;
  const absl::Status status = reader.Take(3, &losses);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("device lost"));
}

}  // namespace
}  // namespace gradsync
