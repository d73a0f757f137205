#include "benchmarks/profiles/step_profile.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three tensors of 1, 2 and 3 MiB, ready at 30, 60 and 90 us.
proto::StepProfile ThreeTensors() {
  proto::StepProfile profile;
  profile.set_model("three");
  profile.set_forward_us(20);
  profile.set_backward_us(80);
  for (int i = 1; i <= 3; ++i) {
    proto::ProfiledTensor* const tensor = profile.add_tensors();
    tensor->set_name(std::string(1, static_cast<char>('a' + i)));
    tensor->set_numel(i << 18);
    tensor->set_ready_us(30 * i);
  }
  return profile;
}

TEST(StepProfileTest, ABucketIsReadyWithItsLastTensor) {
  PlanOptions options;
  options.world_size = 2;
  options.first_bucket_bytes = 1 << 20;
  options.bucket_bytes = 5 << 20;
  const absl::StatusOr<Plan> plan = ProfilePlan(ThreeTensors(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->total_bytes(), 6 << 20);
  EXPECT_THAT(BucketReadyUs(ThreeTensors(), *plan), ElementsAre(30, 90));
}

TEST(StepProfileTest, TimesMustNotFallNorPassTheEndOfBackward) {
  EXPECT_TRUE(ValidateStepProfile(ThreeTensors()).ok());
  proto::StepProfile falls = ThreeTensors();
  falls.mutable_tensors(1)->set_ready_us(29);
  EXPECT_THAT(std::string(ValidateStepProfile(falls).message()),
              HasSubstr("c.ready_us: expected between the last tensor's 30 and the end of backward "
                        "100, found 29"));
  proto::StepProfile late = ThreeTensors();
  late.mutable_tensors(2)->set_ready_us(101);
  EXPECT_FALSE(ValidateStepProfile(late).ok());
  proto::StepProfile no_number = ThreeTensors();
  no_number.set_update_us(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(ValidateStepProfile(no_number).ok());
}

TEST(StepProfileTest, ErrorsBeginWithTheFile) {
  EXPECT_THAT(std::string(ParseStepProfile("{", "p.json").status().message()), HasSubstr("p.json"));
  EXPECT_THAT(std::string(ParseStepProfile("{}", "p.json").status().message()),
              HasSubstr("p.json: model: expected a name"));
}

}  // namespace
}  // namespace gradsync
