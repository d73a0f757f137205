#include "gradsync/join/agree_on_flags.h"

#include <string>
#include <thread>
#include <vector>

#include "core/group/key_value_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(AgreeOnFlagsTest, TheFlagTheRanksAndTheirValuesAreNamed) {
  const FlagTexts one = {{"lr", "0.1"}, {"model", "mlp"}};
  const FlagTexts two = {{"lr", "0.2"}, {"model", "mlp"}};
  const absl::Status status = CompareFlags({one, two, one});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "--lr: expected the same on all ranks; ranks 0, 2 have 0.1, rank 1 has 0.2");
  EXPECT_EQ(CompareFlags({one, one, one}), absl::OkStatus());
  EXPECT_EQ(CompareFlags({one}), absl::OkStatus());
}

TEST(AgreeOnFlagsTest, AllThatDifferIsNamedAndWhatIsMissingToo) {
  const absl::Status status = CompareFlags(
      {{{"a", "1"}, {"b", "x"}, {"c", "1"}}, {{"a", "2"}, {"b", ""}}, {{"a", "1"}, {"b", "x"}}});
  EXPECT_EQ(status.message(),
            "--a: expected the same on all ranks; ranks 0, 2 have 1, rank 1 has 2; "
            "--b: expected the same on all ranks; ranks 0, 2 have x, rank 1 has nothing; "
            "--c: expected the same on all ranks; rank 0 has 1, ranks 1, 2 have no such flag");
}

TEST(AgreeOnFlagsTest, TheMessageStaysShortWithManyRanksAndFlags) {
  std::vector<FlagTexts> ranks(1000);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (char flag = 'a'; flag <= 'z'; ++flag) {
      ranks[rank][std::string(1, flag)] =
          flag == 'a' ? std::string(rank == 7 ? "1" : "0") : std::to_string(rank);
    }
  }
  const absl::Status status = CompareFlags(ranks);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ranks 0 to 6, 8 to 999 have 0, rank 7 has 1; "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("others have 996 more values"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("and 22 more flags"));
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(AgreeOnFlagsTest, AllRanksGetTheSameAnswerThroughTheStore) {
  for (const std::string last : {"0.1", "0.2\n--x"}) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    std::vector<absl::Status> statuses(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        WorkerGroup group;
        group.rank = rank;
        group.world_size = 3;
        group.store = store;
        statuses[rank] = AgreeOnFlags(group, {{"lr", rank == 2 ? last : "0.1"}, {"data", "a=b"}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status, statuses[0]);
      if (last == "0.1") {
        EXPECT_EQ(status, absl::OkStatus());
      } else {
        EXPECT_EQ(status.message(),
                  "--lr: expected the same on all ranks; ranks 0, 1 have 0.1, rank 2 has "
                  "0.2\\n--x");
      }
    }
  }
}

TEST(AgreeOnFlagsTest, ARankThatDoesNotComeIsNamed) {
  WorkerGroup group;
  group.rank = 0;
  group.world_size = 2;
  group.store = NewInMemoryStore();
  group.timeout = absl::Milliseconds(10);
  const absl::Status status = AgreeOnFlags(group, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of 2 has not come"));
}

}  // namespace
}  // namespace gradsync
