#include "gradsync/ddp/joined_ranks.h"

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

class JoinedRanksTest : public testing::Test {
 protected:
  JoinedRanks Rank(int rank, int world_size, absl::string_view name = "0") {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = world_size;
    group.run_id = "test";
    group.store = store_;
    return JoinedRanks(group, name);
  }

  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
};

TEST_F(JoinedRanksTest, AStepIsTheLastWhenAllHaveJoinedBeforeIt) {
  JoinedRanks first = Rank(0, 3), second = Rank(1, 3), third = Rank(2, 3);
  ASSERT_TRUE(second.Publish(2, false, Soon()).ok());
  EXPECT_FALSE(second.NobodyDid(3, Soon()).value());
  ASSERT_TRUE(first.Publish(3, true, Soon()).ok());
  EXPECT_FALSE(first.NobodyDid(4, Soon()).value());
  EXPECT_FALSE(second.NobodyDid(4, Soon()).value());
  ASSERT_TRUE(third.Publish(5, false, Soon()).ok());
  // The third has done its fifth step and joined, the others have not yet seen that it is done.
  EXPECT_FALSE(first.NobodyDid(5, Soon()).value());
  EXPECT_FALSE(second.NobodyDid(5, Soon()).value());
  for (JoinedRanks* rank : {&third, &first, &second}) {
    EXPECT_TRUE(rank->NobodyDid(6, Soon()).value());
    EXPECT_EQ(rank->RankWithMost(), 2);
    EXPECT_FALSE(rank->AllFollow());
  }
}

TEST_F(JoinedRanksTest, OfRanksWithEquallyManyInputsTheFirstCounts) {
  JoinedRanks first = Rank(0, 2), second = Rank(1, 2);
  ASSERT_TRUE(first.Publish(0, false, Soon()).ok());
  ASSERT_TRUE(second.Publish(0, false, Soon()).ok());
  EXPECT_TRUE(first.NobodyDid(1, Soon()).value());
  EXPECT_EQ(first.RankWithMost(), 0);
  EXPECT_TRUE(first.AllFollow());  // nobody has missed a step
}

TEST_F(JoinedRanksTest, ARankThatFollowsHasMissedNothing) {
  JoinedRanks first = Rank(0, 2), second = Rank(1, 2);
  ASSERT_TRUE(first.Publish(1, true, Soon()).ok());
  ASSERT_TRUE(second.Publish(7, false, Soon()).ok());
  EXPECT_TRUE(second.NobodyDid(8, Soon()).value());
  EXPECT_EQ(second.RankWithMost(), 1);
  EXPECT_TRUE(second.AllFollow());
}

TEST_F(JoinedRanksTest, UsesOfDifferentNamesNeverMeet) {
  JoinedRanks first = Rank(0, 1, "0");
  ASSERT_TRUE(first.Publish(3, false, Soon()).ok());
  JoinedRanks second = Rank(0, 1, "1");
  EXPECT_FALSE(second.NobodyDid(9, Soon()).value());
  ASSERT_TRUE(second.Publish(8, false, Soon()).ok());
  EXPECT_TRUE(second.NobodyDid(9, Soon()).value());
}

TEST_F(JoinedRanksTest, SomethingElseInTheStoreIsDataLoss) {
  JoinedRanks rank = Rank(0, 1);
  ASSERT_TRUE(store_->Set("test/0/joined/0/0", "three", Soon()).ok());
  EXPECT_EQ(rank.NobodyDid(1, Soon()).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace gradsync
