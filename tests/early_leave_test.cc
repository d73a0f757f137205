// Programs of one's own of which one rank does a step less, or just ends: both ranks waited for their
// time-outs, and the waiting one was blamed.

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

struct Rank {
  int steps;
  std::string how = "leaves";
};

// A job of tests/leaving_rank.cc.
std::vector<std::unique_ptr<TestProgram>> Start(const std::string& topology,
                                                const std::string& link,
                                                const std::vector<Rank>& ranks) {
  std::string folder = ::testing::TempDir() + "/early_leave-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  const std::string port_file = folder + "/master";
  std::string master = "127.0.0.1:0";
  std::vector<std::unique_ptr<TestProgram>> started;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    started.push_back(std::make_unique<TestProgram>(std::vector<std::string>{
        "tests/leaving_rank", absl::StrCat(rank), absl::StrCat(ranks.size()), master, port_file,
        topology, link, absl::StrCat(ranks[rank].steps), ranks[rank].how}));
    if (rank > 0) continue;
    started[0]->Await([&] { return std::filesystem::exists(port_file); });
    std::getline(std::ifstream(port_file), master);
  }
  std::filesystem::remove_all(folder);
  return started;
}

struct Place {
  std::string topology;
  std::string link;
};

class EarlyLeaveTest : public ::testing::TestWithParam<Place> {
 protected:
  static std::vector<std::unique_ptr<TestProgram>> Job(const std::vector<Rank>& ranks) {
    return Start(GetParam().topology, GetParam().link, ranks);
  }
};

TEST_P(EarlyLeaveTest, ARankThatDoesAStepLessIsNamedByAll) {
  for (const int early : {0, 1}) {
    std::vector<Rank> ranks(2, Rank{5});
    ranks[early].steps = 4;
    const auto job = Job(ranks);
    const std::string expected = absl::StrCat("rank ", early, " has left after step 4, rank ",
                                              1 - early, " waits in step 5");
    for (const auto& rank : job) {
      EXPECT_EQ(rank->Finish().code, 1);
      EXPECT_THAT(rank->err(), Contains(HasSubstr(expected)));
    }
  }
}

TEST_P(EarlyLeaveTest, OneOfThreeThatLeavesBeforeItsFirstStepIsNamedByAll) {
  const auto job = Job({Rank{3}, Rank{3}, Rank{0}});
  for (const auto& rank : job) {
    EXPECT_EQ(rank->Finish().code, 1);
    EXPECT_THAT(rank->err(), Contains(HasSubstr("rank 2 has left before its first step, rank ")));
    EXPECT_THAT(rank->err(), Contains(HasSubstr(" waits in step 1")));
  }
}

TEST_P(EarlyLeaveTest, ARankThatEndsWithoutLeavingIsNamed) {
  const std::pair<int, std::string> ends[] = {{1, "returns"}, {0, "exits"}, {1, "throws"}};
  for (const auto& [early, how] : ends) {
    SCOPED_TRACE(absl::StrCat("rank ", early, " ", how));
    std::vector<Rank> ranks(2, Rank{5});
    ranks[early] = {4, how};
    const auto job = Job(ranks);
    TestProgram& other = *job[1 - early];
    EXPECT_EQ(other.Finish().code, 1);
    EXPECT_THAT(other.err(), Contains(HasSubstr(absl::StrCat(": rank ", early))));
    if (how == "returns") {
      EXPECT_THAT(other.err(), Contains(HasSubstr("left without Shutdown after step 4")));
    }
  }
}

TEST_P(EarlyLeaveTest, RanksThatDoTheSameStepsEndWell) {
  const auto job = Job({Rank{3}, Rank{3}, Rank{3}});
  for (const auto& rank : job) EXPECT_EQ(rank->Finish().code, 0);
}

INSTANTIATE_TEST_SUITE_P(All, EarlyLeaveTest,
                         ::testing::Values(Place{"ring", "grpc"}, Place{"ring", "tcp"},
                                           Place{"ring", "shm"}, Place{"ring", "gloo"},
                                           Place{"ps", "tcp"}, Place{"ps", "shm"}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.topology, "_", info.param.link);
                         });

}  // namespace
}  // namespace gradsync
