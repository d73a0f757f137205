#include "worker/train/accumulation.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// The steps of an epoch, one after the other, as the trainer takes them.
void ExpectStepsCoverAnEpoch(const Accumulation& accumulation) {
  int64_t position = 0;
  int64_t steps = 0;
  for (; position < accumulation.share; ++steps) {
    const int64_t batches = accumulation.BatchesOfStepAt(position);
    ASSERT_GE(batches, 1);
    ASSERT_LE(batches, accumulation.per_step);
    position = std::min(position + batches * accumulation.batch_size, accumulation.share);
    if (position < accumulation.share) {
      EXPECT_EQ(batches, accumulation.per_step);
    }
  }
  EXPECT_EQ(steps, accumulation.StepsPerEpoch());
}

TEST(AccumulationTest, StepsCoverAnEpochAndTheLastTakesWhatIsLeft) {
  for (int64_t share : {1, 2, 7, 16, 17}) {
    for (int64_t batch_size : {1, 2, 3}) {
      for (int64_t per_step : {1, 2, 3, 100}) {
        SCOPED_TRACE(testing::Message() << share << " " << batch_size << " " << per_step);
        ExpectStepsCoverAnEpoch({share, batch_size, per_step});
      }
    }
  }
  const Accumulation seven = {/*share=*/7, /*batch_size=*/2, /*per_step=*/3};
  EXPECT_EQ(seven.StepsPerEpoch(), 2);
  EXPECT_EQ(seven.BatchesOfStepAt(0), 3);
  EXPECT_EQ(seven.BatchesOfStepAt(6), 1);
}

TEST(AccumulationTest, WithOneBatchPerStepStepsAreBatches) {
  const Accumulation one = {/*share=*/50000, /*batch_size=*/256, /*per_step=*/1};
  EXPECT_EQ(one.StepsPerEpoch(), 196);
  EXPECT_EQ(one.BatchesOfStepAt(49920), 1);
}

}  // namespace
}  // namespace gradsync
