#include "core/base/thread.h"

#include <memory>

#include "core/base/mutex.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RunBoundedTest, ReturnsWhenTheCallAndWhatItOwnedAreGone) {
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = owned;
  bool ran = false;
  EXPECT_TRUE(RunBounded(absl::InfiniteDuration(),
                         [&ran, owned = std::move(owned)] { ran = *owned == 1; }));
  EXPECT_TRUE(ran);
  EXPECT_TRUE(seen.expired());
}

TEST(RunBoundedTest, LeavesACallThatHangsToItself) {
  const auto go = std::make_shared<Notification>();
  const auto over = std::make_shared<Notification>();
  EXPECT_FALSE(RunBounded(absl::Milliseconds(10), [go, over] {
    go->WaitForNotification();
    over->Notify();
  }));
  EXPECT_FALSE(over->HasBeenNotified());
  go->Notify();
  over->WaitForNotification();
}

}  // namespace
}  // namespace gradsync
