#include "core/base/activity.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(ActivityTest, NobodyWorksWhoDoesNotSaySo) {
  Activity activity;
  activity.Add();
  EXPECT_FALSE(activity.working());
  EXPECT_EQ(activity.done(), 1);
}

TEST(ActivityTest, AWaitInsideWorkIsNoWork) {
  Activity activity;
  const Activity::Work work(&activity);
  EXPECT_TRUE(activity.working());
  {
    const Activity::Wait wait(&activity);
    EXPECT_FALSE(activity.working());
    const Activity::Wait inner(&activity);
    EXPECT_FALSE(activity.working());
  }
  EXPECT_TRUE(activity.working());
}

TEST(ActivityTest, AProcessWorksAsLongAsOneOfItsThreadsDoes) {
  Activity activity;
  const Activity::Work work(&activity);
  const Activity::Work another(&activity);
  const Activity::Wait wait(&activity);
  EXPECT_TRUE(activity.working());
}

TEST(ActivityTest, NobodyIsProvenBeforeItSaysSo) {
  Activity activity;
  const Activity::Work work(&activity);
  EXPECT_FALSE(activity.proven());
  activity.Prove();
  EXPECT_TRUE(activity.proven());
}

TEST(ActivityTest, TheEndOfAWaitCounts) {
  Activity activity;
  int64_t before;
  {
    const Activity::Wait wait(&activity);
    before = activity.done();
  }
  EXPECT_GT(activity.done(), before);
}

TEST(ActivityTest, WithoutACounterNothingIsCounted) {
  const Activity::Work work(nullptr);
  const Activity::Wait wait(nullptr);
  CountActivity(nullptr);
}

}  // namespace
}  // namespace gradsync
