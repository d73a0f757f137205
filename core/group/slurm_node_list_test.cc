#include "core/group/launch_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SlurmNodeListTest, PlainNamesStayAsTheyAre) {
  EXPECT_THAT(ExpandSlurmNodeList("node1").value(), ElementsAre("node1"));
  EXPECT_THAT(ExpandSlurmNodeList("a-b.c_d,x").value(), ElementsAre("a-b.c_d", "x"));
}

TEST(SlurmNodeListTest, RangesExpandInOrderAndKeepTheirWidth) {
  EXPECT_THAT(ExpandSlurmNodeList("gpu[003-005,012],x1").value(),
              ElementsAre("gpu003", "gpu004", "gpu005", "gpu012", "x1"));
  EXPECT_THAT(ExpandSlurmNodeList("n[8-11]").value(), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(ExpandSlurmNodeList("n[098-101]").value(),
              ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(ExpandSlurmNodeList("n[5,2]").value(), ElementsAre("n5", "n2"));
}

TEST(SlurmNodeListTest, SeveralBracketsCountTheLastFastest) {
  EXPECT_THAT(ExpandSlurmNodeList("r[1-2]n[01-02]x").value(),
              ElementsAre("r1n01x", "r1n02x", "r2n01x", "r2n02x"));
}

TEST(SlurmNodeListTest, AsManyHostsAsAJobHasWorkersAreExpanded) {
  EXPECT_EQ(ExpandSlurmNodeList("a[0-65535]").value().size(), 65536u);
}

TEST(SlurmNodeListTest, AnythingElseIsAnErrorThatQuotesIt) {
  for (const char* list : {"",
                           ",",
                           "a,",
                           "a,,b",
                           "a[",
                           "a[1",
                           "a]",
                           "a[]",
                           "a[1-]",
                           "a[-1]",
                           "a[3-1]",
                           "a[x]",
                           "a[1-2-3]",
                           "a[[1]]",
                           "a b",
                           "a/b",
                           "a[+1]",
                           "a[1-99999999999]",
                           "a[0-999]b[0-9999]",
                           "a[0-65536]",
                           "a[99999999999999999999]"}) {
    const absl::StatusOr<std::vector<std::string>> hosts = ExpandSlurmNodeList(list);
    EXPECT_TRUE(absl::IsInvalidArgument(hosts.status())) << list;
  }
  EXPECT_THAT(std::string(ExpandSlurmNodeList("a[3-1]").status().message()), HasSubstr("3-1"));
}

}  // namespace
}  // namespace gradsync
