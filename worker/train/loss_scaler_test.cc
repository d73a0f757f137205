#include "worker/train/loss_scaler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

LossScalerOptions GrowAfter(int64_t interval) {
  LossScalerOptions options;
  options.growth_interval = interval;
  return options;
}

void Steps(LossScaler* scaler, int count, bool skipped = false) {
  for (int i = 0; i < count; ++i) EXPECT_TRUE(scaler->Update(skipped).ok());
}

TEST(LossScalerTest, StartsAndGrowsAsGradScaler) {
  LossScaler scaler{LossScalerOptions()};
  EXPECT_EQ(scaler.scale(), 65536);
  Steps(&scaler, 1999);
  EXPECT_EQ(scaler.scale(), 65536);
  Steps(&scaler, 1);
  EXPECT_EQ(scaler.scale(), 131072);
  Steps(&scaler, 1999);
  EXPECT_EQ(scaler.scale(), 131072);
  Steps(&scaler, 1);
  EXPECT_EQ(scaler.scale(), 262144);
}

TEST(LossScalerTest, ASkippedStepHalvesTheScaleAndTheCountBeginsAgain) {
  LossScaler scaler(GrowAfter(3));
  Steps(&scaler, 2);
  Steps(&scaler, 1, /*skipped=*/true);
  EXPECT_EQ(scaler.scale(), 32768);
  Steps(&scaler, 2);
  EXPECT_EQ(scaler.scale(), 32768);
  Steps(&scaler, 1);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScalerTest, TheScaleStaysAFloat) {
  LossScaler scaler(GrowAfter(1));
  Steps(&scaler, 1000);
  EXPECT_EQ(scaler.scale(), 0x1p127);
  EXPECT_EQ(static_cast<double>(static_cast<float>(1 / scaler.scale())), 0x1p-127);
}

TEST(LossScalerTest, GradientsThatNoScaleHelpsAreAnError) {
  LossScaler scaler{LossScalerOptions()};
  Steps(&scaler, 32, /*skipped=*/true);
  EXPECT_EQ(scaler.scale(), LossScaler::kSmallest);
  const absl::Status status = scaler.Update(/*skipped=*/true);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("diverged"));
}

}  // namespace
}  // namespace gradsync
