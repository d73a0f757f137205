#include "base/rate.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RateTest, BandwidthsAreBitsPerSecond) {
  EXPECT_DOUBLE_EQ(*ParseBandwidth("400mbit"), 50e6);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("10Gbit"), 1.25e9);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("8kbit"), 1e3);
  for (const char* text : {"", "10", "10GB", "0mbit", "fast", "-1mbit"}) {
    EXPECT_FALSE(ParseBandwidth(text).ok()) << text;
  }
}

}  // namespace
}  // namespace gradsync
