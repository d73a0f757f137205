#include "core/base/straggler.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(StragglerTest, NobodyIsSlowByDefault) {
  const Straggler nobody = Straggler::Parse("").value();
  EXPECT_TRUE(nobody.nobody());
  EXPECT_FALSE(nobody.random());
  EXPECT_TRUE(nobody.CheckWorkers(1).ok());
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(nobody.Factor(rank, 7), 1);
}

TEST(StragglerTest, OneRankIsSlowInEveryStep) {
  const Straggler one = Straggler::Parse("2:3.5").value();
  EXPECT_EQ(one.text(), "2:3.5");
  EXPECT_FALSE(one.random());
  for (int64_t step = 1; step < 5; ++step) {
    EXPECT_EQ(one.Factor(0, step), 1);
    EXPECT_EQ(one.Factor(2, step), 3.5);
  }
  EXPECT_TRUE(one.CheckWorkers(3).ok());
  EXPECT_THAT(one.CheckWorkers(2).message(),
              HasSubstr("--straggler: expected a rank from 0 to 1 of 2 workers, found \"2:3.5\""));
}

TEST(StragglerTest, TheRandomKindSlowsTheGivenShareOfRanksAndSteps) {
  const Straggler random = Straggler::Parse("random:7:0.25:4").value();
  EXPECT_TRUE(random.random());
  EXPECT_TRUE(random.CheckWorkers(1).ok());
  std::vector<int> slow_of_rank(8);
  for (int rank = 0; rank < 8; ++rank) {
    for (int64_t step = 1; step <= 1000; ++step) {
      const double factor = random.Factor(rank, step);
      ASSERT_TRUE(factor == 1 || factor == 4);
      slow_of_rank[rank] += factor == 4;
    }
    EXPECT_NEAR(slow_of_rank[rank], 250, 60);
  }
  EXPECT_EQ(Straggler::Parse("random:7:0:4")->Factor(0, 1), 1);
  EXPECT_EQ(Straggler::Parse("random:7:1:4")->Factor(0, 1), 4);
}

// Ranks that were slow in the same steps would make a group as slow as one worker.
TEST(StragglerTest, RanksStepsAndSeedsAreIndependent) {
  const Straggler random = Straggler::Parse("random:7:0.5:2").value();
  const Straggler other = Straggler::Parse("random:8:0.5:2").value();
  int ranks_agree = 0, seeds_agree = 0, steps_agree = 0;
  for (int64_t step = 1; step <= 1000; ++step) {
    ranks_agree += random.Factor(0, step) == random.Factor(1, step);
    seeds_agree += random.Factor(0, step) == other.Factor(0, step);
    steps_agree += random.Factor(0, step) == random.Factor(0, step + 1);
  }
  for (int agree : {ranks_agree, seeds_agree, steps_agree}) EXPECT_NEAR(agree, 500, 80);
}

TEST(StragglerTest, TheRandomKindIsTheSameOnEveryMachine) {
  const Straggler random = Straggler::Parse("random:1:0.5:2").value();
  std::vector<double> factors;
  for (int64_t step = 1; step <= 8; ++step) factors.push_back(random.Factor(3, step));
  EXPECT_THAT(factors, ::testing::ElementsAre(2, 1, 2, 1, 1, 1, 2, 1));
}

TEST(StragglerTest, AnythingElseIsRefusedInOneLine) {
  for (const char* text :
       {"1", "1:", ":2", "-1:2", "one:2", "1:0.99", "1:nan", "1:inf", "1:2:3", "random:1:0.5",
        "random:1:1.5:2", "random:1:-0.1:2", "random:1:nan:2", "random:x:0.5:2", "random:1:0.5:0",
        "chance:1:0.5:2", "random:1:0.5:2:3", " "}) {
    const auto parsed = Straggler::Parse(text);
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr("--straggler: expected RANK:FACTOR or"));
    EXPECT_THAT(parsed.status().message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace gradsync
