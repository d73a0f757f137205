#include "core/plan/placement.h"
#include "core/plan/precision.h"
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

}  // namespace
}  // namespace gradsync
