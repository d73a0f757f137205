#include "worker/train/recipe.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RecipeTest, ConstantStaysConstant) {
  RecipeOptions options;
  options.base = 0.05;
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 0.05);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1000000), 0.05);
}

TEST(RecipeTest, StepDropsAtEachMilestone) {
  RecipeOptions options;
  options.schedule = Schedule::kStep;
  options.base = 1;
  options.gamma = 0.5;
  options.milestones = {10, 20};
  EXPECT_DOUBLE_EQ(LearningRate(options, 9), 1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 19), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 20), 0.25);
}

TEST(RecipeTest, CosineRunsFromBaseToFinal) {
  RecipeOptions options;
  options.schedule = Schedule::kCosine;
  options.base = 1;
  options.final = 0.2;
  options.total_steps = 100;
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 1);
  EXPECT_NEAR(LearningRate(options, 25), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_NEAR(LearningRate(options, 50), 0.6, 1e-12);
  EXPECT_NEAR(LearningRate(options, 100), 0.2, 1e-12);
  EXPECT_NEAR(LearningRate(options, 200), 0.2, 1e-12);
}

TEST(RecipeTest, WarmUpRisesLinearlyToTheFullRate) {
  RecipeOptions options;
  options.base = 0.4;
  options.warmup_steps = 4;
  EXPECT_NEAR(LearningRate(options, 0), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(options, 1), 0.2, 1e-12);
  EXPECT_NEAR(LearningRate(options, 3), 0.4, 1e-12);
  EXPECT_NEAR(LearningRate(options, 4), 0.4, 1e-12);
}

TEST(RecipeTest, CosineSpansOnlyTheStepsAfterWarmUp) {
  RecipeOptions options;
  options.schedule = Schedule::kCosine;
  options.base = 1;
  options.warmup_steps = 10;
  options.total_steps = 110;
  EXPECT_NEAR(LearningRate(options, 9), 1, 1e-12);
  EXPECT_NEAR(LearningRate(options, 10), 1, 1e-12);
  EXPECT_NEAR(LearningRate(options, 60), 0.5, 1e-12);
  EXPECT_NEAR(LearningRate(options, 110), 0, 1e-12);
}

TEST(RecipeTest, BadOptionsAreNamed) {
  RecipeOptions negative;
  negative.base = -1;
  EXPECT_THAT(ValidateRecipe(negative).message(),
              HasSubstr("--lr: expected a finite number of at least 0, found \"-1\""));
  RecipeOptions not_finite;
  not_finite.base = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(ValidateRecipe(not_finite).ok());
  RecipeOptions endless;
  endless.schedule = Schedule::kCosine;
  EXPECT_THAT(ValidateRecipe(endless).message(), HasSubstr("the job's 0 steps"));
  RecipeOptions unordered;
  unordered.milestones = {5, 5};
  EXPECT_THAT(ValidateRecipe(unordered).message(), HasSubstr("milestone 1"));
  RecipeOptions negative_warm_up;
  negative_warm_up.warmup_steps = -1;
  EXPECT_FALSE(ValidateRecipe(negative_warm_up).ok());
  EXPECT_TRUE(ValidateRecipe(RecipeOptions{}).ok());
}

// --schedule=cosine could never run and --schedule=step was constant: nobody set what they need.
TEST(RecipeTest, AJobsStepsCompleteASchedule) {
  RecipeOptions cosine;
  cosine.schedule = Schedule::kCosine;
  cosine.base = 1;
  const RecipeOptions whole = FitRecipe(cosine, /*steps=*/100, /*steps_per_epoch=*/30).value();
  EXPECT_NEAR(LearningRate(whole, 50), 0.5, 1e-12);
  EXPECT_NEAR(LearningRate(whole, 100), 0, 1e-12);
  RecipeOptions step;
  step.schedule = Schedule::kStep;
  step.base = 1;
  ASSERT_TRUE(ParseMilestones({"1e", "3e"}, &step).ok());
  const RecipeOptions drops = FitRecipe(step, 100, 30).value();
  EXPECT_THAT(drops.milestones, ElementsAre(30, 90));
  EXPECT_DOUBLE_EQ(LearningRate(drops, 29), 1);
  EXPECT_DOUBLE_EQ(LearningRate(drops, 30), 0.1);
}

TEST(RecipeTest, AScheduleThatLacksWhatItNeedsIsRefused) {
  RecipeOptions options;
  options.schedule = Schedule::kStep;
  EXPECT_THAT(FitRecipe(options, 100, 30).status().message(), HasSubstr("--lr_milestones"));
  options.milestones = {100};
  EXPECT_THAT(FitRecipe(options, 100, 30).status().message(), HasSubstr("below the job's 100"));
  options.milestones = {99};
  EXPECT_TRUE(FitRecipe(options, 100, 30).ok());
  options.schedule = Schedule::kCosine;
  options.warmup_steps = 100;
  EXPECT_THAT(FitRecipe(options, 100, 30).status().message(), HasSubstr("--lr_warmup_steps"));
}

TEST(RecipeTest, MilestonesAreAllStepsOrAllEpochs) {
  RecipeOptions options;
  EXPECT_TRUE(ParseMilestones({}, &options).ok());
  EXPECT_TRUE(options.milestones.empty() && options.milestone_epochs.empty());
  EXPECT_TRUE(ParseMilestones({"5", "100"}, &options).ok());
  EXPECT_THAT(options.milestones, ElementsAre(5, 100));
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"5", "2e"}, {"0"}, {"-1"}, {"e"}, {""}, {"5 "}, {"1.5"}, {"99999999999999999999"}}) {
    RecipeOptions fresh;
    EXPECT_THAT(ParseMilestones(bad, &fresh).message(), HasSubstr("--lr_milestones")) << bad[0];
  }
}

TEST(RecipeTest, WarmUpIsInStepsOrEpochsAndNotBoth) {
  RecipeOptions steps;
  EXPECT_TRUE(ParseWarmUp("", &steps).ok());
  EXPECT_TRUE(ParseWarmUp("0", &steps).ok());
  EXPECT_TRUE(ParseWarmUp("7", &steps).ok());
  EXPECT_EQ(steps.warmup_steps, 7);
  EXPECT_THAT(ParseWarmUp("5", &steps).message(), HasSubstr("--lr_warmup_steps"));
  RecipeOptions epochs;
  EXPECT_TRUE(ParseWarmUp("2e", &epochs).ok());
  EXPECT_EQ(FitRecipe(epochs, /*steps=*/100, /*steps_per_epoch=*/30).value().warmup_steps, 60);
  for (const char* bad : {"e", "-1", "1.5e", "5 ", "2ee", "99999999999"}) {
    RecipeOptions fresh;
    EXPECT_THAT(ParseWarmUp(bad, &fresh).message(), HasSubstr("--lr_warmup:")) << bad;
  }
}

TEST(RecipeTest, AWarmUpMayBeginAnywhereUpToTheFullRate) {
  RecipeOptions options;
  options.base = 1;
  options.warmup_steps = 4;
  options.warmup_start = 0.2;
  EXPECT_NEAR(LearningRate(options, 0), 0.2, 1e-12);
  EXPECT_NEAR(LearningRate(options, 3), 0.8, 1e-12);
  EXPECT_NEAR(LearningRate(options, 4), 1, 1e-12);
  options.warmup_start = 1.5;
  EXPECT_THAT(ValidateRecipe(options).message(), HasSubstr("--lr_warmup_start"));
}

TEST(RecipeTest, PolynomialsFallToZeroAtTheEndOfTheJob) {
  RecipeOptions options;
  options.schedule = Schedule::kPoly;
  options.base = 1;
  options.power = 2;
  const RecipeOptions whole = FitRecipe(options, /*steps=*/100, /*steps_per_epoch=*/30).value();
  EXPECT_NEAR(LearningRate(whole, 50), 0.25, 1e-12);
  EXPECT_EQ(LearningRate(whole, 100), 0);
  options.warmup_steps = 100;
  EXPECT_THAT(FitRecipe(options, 100, 30).status().message(), HasSubstr("--schedule=poly"));
}

TEST(RecipeTest, TheRateGrowsWithTheGlobalBatch) {
  RecipeOptions options;
  options.base = 0.1;
  EXPECT_EQ(ScaleRate(options, 1024).value().base, 0.1);
  options.scaling = RateScaling::kLinear;
  EXPECT_DOUBLE_EQ(ScaleRate(options, 1024).value().base, 0.4);
  EXPECT_DOUBLE_EQ(ScaleRate(options, 64).value().base, 0.025);
  options.scaling = RateScaling::kSqrt;
  options.reference_batch = 64;
  EXPECT_DOUBLE_EQ(ScaleRate(options, 1024).value().base, 0.4);
  options.reference_batch = 0;
  EXPECT_THAT(ScaleRate(options, 1024).status().message(), HasSubstr("at least 1"));
  EXPECT_THAT(ParseRateScaling("square").status().message(), HasSubstr("linear or sqrt"));
}

TEST(RecipeTest, ScheduleNamesAreParsed) {
  EXPECT_EQ(ParseSchedule("constant").value(), Schedule::kConstant);
  EXPECT_EQ(ParseSchedule("step").value(), Schedule::kStep);
  EXPECT_EQ(ParseSchedule("cosine").value(), Schedule::kCosine);
  EXPECT_EQ(ParseSchedule("poly").value(), Schedule::kPoly);
  EXPECT_THAT(ParseSchedule("steep").status().message(),
              HasSubstr("constant, step, cosine or poly"));
}

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
