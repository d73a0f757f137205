#include "core/plan/kinds.h"

#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(KindsTest, NamesAreParsedBack) {
  for (Placement placement : {Placement::kDedicated, Placement::kColocated, Placement::kMixed}) {
    EXPECT_EQ(*ParsePlacement(PlacementName(placement)), placement);
  }
  for (Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    EXPECT_EQ(*ParsePrecision(PrecisionName(precision)), precision);
  }
}

TEST(KindsTest, OtherWordsAreRefusedByTheNameOfTheFlag) {
  EXPECT_THAT(ParsePlacement("").status().message(),
              HasSubstr("--placement: expected dedicated, colocated or mixed, found \"\""));
  EXPECT_THAT(ParsePrecision("int8").status().message(),
              HasSubstr("--precision: expected fp32, bf16 or fp16, found \"int8\""));
}

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
