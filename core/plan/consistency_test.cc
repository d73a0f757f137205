#include "core/plan/consistency.h"

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(ConsistencyTest, NamesAreParsedBack) {
  for (const std::string name : {"bsp", "ssp:0", "ssp:2", "ssp:1000000", "asp"}) {
    const absl::StatusOr<Consistency> parsed = ParseConsistency(name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(ConsistencyName(*parsed), name);
  }
  EXPECT_EQ(*ParseConsistency(""), Consistency());
}

TEST(ConsistencyTest, WhatIsNoneIsRefusedByItsText) {
  for (const std::string text : {"ssp", "ssp:", "ssp:-1", "ssp:two", "ssp:2.5", "ssp: 2", "ssp:+2",
                                 "ssp:1000001", "ssp:99999999999999999999", "BSP", "asp:1"}) {
    const absl::Status status = ParseConsistency(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), "found \"" + text + "\"")) << status;
  }
}

TEST(ConsistencyTest, BoundsSayWhoGoesOn) {
  EXPECT_TRUE(ParseConsistency("ssp:2")->Allows(2));
  EXPECT_FALSE(ParseConsistency("ssp:2")->Allows(3));
  EXPECT_TRUE(ParseConsistency("ssp:0")->Allows(0));
  EXPECT_FALSE(ParseConsistency("ssp:0")->Allows(1));
  EXPECT_TRUE(ParseConsistency("asp")->Allows(1000));
}

}  // namespace
}  // namespace gradsync
