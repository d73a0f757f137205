#include "ddp/parameter_gathers.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sync/manual_sync.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

// Six tensors in four buckets.
Plan FourBuckets() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) tensors.push_back({name, {5}, {1}, 0});
  return *Plan::FromBuckets(tensors, {{5, 4}, {3}, {2, 1}, {0}}, optimizer, 1, 0);
}

TEST(ParameterGathersTest, UnitsHaveBucketsAndNeighboursNeverShareASlot) {
  const auto units = UnitBuckets(FourBuckets(), {{"a", "b"}, {"c"}, {}, {"d", "e"}, {"f"}});
  ASSERT_TRUE(units.ok()) << units.status();
  EXPECT_THAT(*units, ElementsAre(ElementsAre(2, 3), ElementsAre(2), IsEmpty(), ElementsAre(0, 1),
                                  ElementsAre(0)));
  // {2} and {0, 1} follow one another, parted by a unit without parameters.
  EXPECT_EQ(ParameterSlotsFor(*units), 3);
  EXPECT_EQ(ParameterSlotsFor({{0, 3}}), 4);
  EXPECT_EQ(ParameterSlotsFor({{}, {}}), 1);
}

TEST(ParameterGathersTest, EveryParameterIsInOneUnit) {
  EXPECT_THAT(UnitBuckets(FourBuckets(), {{"a", "b", "c", "d", "e"}}).status().message(),
              HasSubstr("found f in none"));
  EXPECT_THAT(
      UnitBuckets(FourBuckets(), {{"a", "b", "c"}, {"d", "e", "f", "a"}}).status().message(),
      HasSubstr("found a, which is in two"));
}

TEST(ParameterGathersTest, NextUnitsComeWhileOneComputesAndWhatIsThereIsNotGatheredAgain) {
  GatheringSync sync;
  const std::vector<std::vector<int>> units = {{2, 3}, {2}, {1}, {0}};
  ParameterGathers gathers(&sync, 4, ParameterSlotsFor(units), units);
  const auto need = [&](int unit, int next) {
    sync.gathered.clear();
    EXPECT_TRUE(gathers.Need(unit, next, Soon()).ok());
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
