#include "core/base/rate.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RateTest, BandwidthsAreBitsPerSecond) {
  EXPECT_DOUBLE_EQ(*ParseBandwidth("400mbit"), 50e6);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("10Gbit"), 1.25e9);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("8kbit"), 1e3);
  EXPECT_DOUBLE_EQ(*ParseBandwidth("10Gbps"), 1.25e9);
  for (const char* text : {"", "10", "10GB", "0mbit", "fast", "-1mbit"}) {
    EXPECT_FALSE(ParseBandwidth(text).ok()) << text;
  }
}

TEST(RateTest, OneBandwidthHasOneName) {
  EXPECT_EQ(BandwidthName("1Gbps"), "1gbit");
  EXPECT_EQ(BandwidthName("400Mbit"), "400mbit");
  EXPECT_EQ(BandwidthName("Fast"), "Fast");
}

}  // namespace
}  // namespace gradsync
