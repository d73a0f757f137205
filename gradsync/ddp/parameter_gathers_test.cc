#include "gradsync/ddp/parameter_gathers.h"

#include <vector>

#include "core/sync/manual_sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes what is gathered, which is there at once.
class GatheringSync : public ManualSync {
 public:
  SyncHandle Gather(int bucket) override {
    gathered.push_back(bucket);
    return ResolvedHandle(absl::OkStatus());
  }

  std::vector<int> gathered;
};

TEST(ParameterGathersTest, NextUnitsComeWhileOneComputesAndWhatIsThereIsNotGatheredAgain) {
  GatheringSync sync;
  const std::vector<std::vector<int>> units = {{2, 3}, {2}, {1}, {0}};
  ParameterGathers gathers(&sync, 4, ParameterSlotsFor(units), units);
  const auto need = [&](int unit, int next) {
    sync.gathered.clear();
    EXPECT_TRUE(gathers.Need({unit, next}, Soon()).ok());
    return sync.gathered;
  };
  // Forward, with two slots.
  EXPECT_EQ(ParameterSlotsFor(units), 2);
  EXPECT_THAT(need(0, 1), ElementsAre(2, 3));
  EXPECT_THAT(need(1, 2), ElementsAre(1));
  EXPECT_THAT(need(2, 3), ElementsAre(0));
  EXPECT_THAT(need(3, -1), IsEmpty());
  // Backward.
  EXPECT_THAT(need(3, 2), IsEmpty());
  gathers.Forget(0);
  EXPECT_THAT(need(2, 1), ElementsAre(2));
  gathers.Forget(1);
  EXPECT_THAT(need(1, 0), ElementsAre(3));
  EXPECT_THAT(need(0, -1), IsEmpty());
  gathers.Forget(2);
  gathers.Forget(3);
  // The next step has them all again.
  EXPECT_THAT(need(0, 1), ElementsAre(2, 3));
  EXPECT_EQ(gathers.gathers(), 8);
}

}  // namespace
}  // namespace gradsync
