#include "train/recipe.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

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
  EXPECT_THAT(ValidateRecipe(negative).message(), HasSubstr("found -1"));
  RecipeOptions not_finite;
  not_finite.base = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(ValidateRecipe(not_finite).ok());
  RecipeOptions endless;
  endless.schedule = Schedule::kCosine;
  EXPECT_THAT(ValidateRecipe(endless).message(), HasSubstr("total_steps 0"));
  RecipeOptions unordered;
  unordered.milestones = {5, 5};
  EXPECT_THAT(ValidateRecipe(unordered).message(), HasSubstr("milestone 1"));
  RecipeOptions negative_warm_up;
  negative_warm_up.warmup_steps = -1;
  EXPECT_FALSE(ValidateRecipe(negative_warm_up).ok());
  EXPECT_TRUE(ValidateRecipe(RecipeOptions{}).ok());
}

TEST(RecipeTest, ScheduleNamesAreParsed) {
  EXPECT_EQ(ParseSchedule("constant").value(), Schedule::kConstant);
  EXPECT_EQ(ParseSchedule("step").value(), Schedule::kStep);
  EXPECT_EQ(ParseSchedule("cosine").value(), Schedule::kCosine);
  EXPECT_THAT(ParseSchedule("poly").status().message(), HasSubstr("constant, step or cosine"));
}

}  // namespace
}  // namespace gradsync
