#include "benchmarks/peer_libraries/peer_contestants.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;

std::string Everything(const PeerSetting& setting) {
  return absl::StrCat(DescribeSetting(setting), " ", absl::StrJoin(setting.launcher, " "));
}

bool Yields(const PeerSetting& setting) {
  const std::string text = Everything(setting);
  for (const char* way :
       {"THREAD_YIELD=2", "THREAD_YIELD=3", "WAIT_MODE=1", "HEAVY_YIELD=1", "--oversubscribe"}) {
    if (absl::StrContains(text, way)) return true;
  }
  return false;
}

// Intel MPI, oneCCL and MPICH had none, so that the table compared our waits with their spinning;
// MPICH did not end at all.
TEST(PeerContestantsTest, WithMoreRanksThanCoresEveryMpiIsToldToYield) {
  for (const int ranks : {2, 4}) {
    const auto contestants = SelectContestants({}, ranks, /*cores=*/2);
    ASSERT_TRUE(contestants.ok()) << contestants.status();
    std::vector<std::string> names;
    for (const Contestant& contestant : *contestants) {
      if (contestant.launch != PeerLaunch::kMpi) continue;
      names.push_back(contestant.name);
      for (const PeerSetting& setting : contestant.settings) {
        EXPECT_EQ(Yields(setting), ranks > 2) << contestant.name << ": " << Everything(setting);
      }
    }
    EXPECT_THAT(names, ElementsAre("mpich", "openmpi", "impi", "oneccl", "mpich_window",
                                   "openmpi_window", "impi_window"));
  }
}

TEST(PeerContestantsTest, WhoDoesAnotherJobThanTheOthersSaysSo) {
  const auto contestants = SelectContestants({}, 2, 2);
  ASSERT_TRUE(contestants.ok()) << contestants.status();
  for (const Contestant& contestant : *contestants) {
    const bool other =
        contestant.name == "tensorflow" || absl::EndsWith(contestant.name, "_window");
    EXPECT_EQ(!contestant.note.empty(), other) << contestant.name;
  }
}

TEST(PeerContestantsTest, ThoseThatAreAskedForComeInTheirUsualOrder) {
  const auto contestants = SelectContestants({"tensorflow", "gloo"}, 2, 2);
  ASSERT_TRUE(contestants.ok()) << contestants.status();
  ASSERT_EQ(contestants->size(), 2u);
  EXPECT_EQ((*contestants)[0].name, "gloo");
  EXPECT_EQ((*contestants)[1].name, "tensorflow");
  EXPECT_FALSE(SelectContestants({"nccl"}, 2, 2).ok());
}

}  // namespace
}  // namespace gradsync
