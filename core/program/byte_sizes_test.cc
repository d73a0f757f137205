#include "core/program/byte_sizes.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(ByteSizesTest, SizesAreReadAsPeopleWriteThem) {
  EXPECT_EQ(*ParseBytes("4096"), 4096);
  EXPECT_EQ(*ParseBytes("4KiB"), 4096);
  EXPECT_EQ(*ParseBytes("4K"), 4096);
  EXPECT_EQ(*ParseBytes("25MiB"), 25 << 20);
  EXPECT_EQ(*ParseBytes("128m"), 128 << 20);
  EXPECT_EQ(*ParseBytes("102.4MB"), 102400000);
  EXPECT_EQ(*ParseBytes("0.5kib"), 512);
  EXPECT_EQ(*ParseBytes("1G"), 1 << 30);
  EXPECT_EQ(*ParseBytes("2GB"), 2000000000);
}

TEST(ByteSizesTest, WhatIsNoSizeIsRefusedByName) {
  for (const char* text : {"", "x", "-4", "4 KiB", "4KKiB", "0", "1.5", "1.0001KiB", "1e3", "2TiB",
                           "999999GiB", "1..5K"}) {
    const absl::Status status = ParseBytes(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(std::string("found \"") + text + "\""), absl::string_view::npos)
        << status;
  }
}

TEST(ByteSizesTest, SizesAreWrittenSoThatTheyCanBeReadAgain) {
  EXPECT_EQ(FormatBytes(4096), "4KiB");
  EXPECT_EQ(FormatBytes(25 << 20), "25MiB");
  EXPECT_EQ(FormatBytes(102400000), "102.4MB");
  EXPECT_EQ(FormatBytes(4097), "4097");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3GiB");
  for (int64_t bytes : {int64_t{1}, int64_t{64}, int64_t{1000}, int64_t{1024}, int64_t{1000000},
                        int64_t{1048576}, int64_t{102400000}, int64_t{1234567890}}) {
    EXPECT_EQ(*ParseBytes(FormatBytes(bytes)), bytes) << FormatBytes(bytes);
  }
}

TEST(ByteSizesTest, AFlagTakesASizeOrZeroAndSaysWhichItHas) {
  ByteSize size;
  std::string error;
  EXPECT_TRUE(AbslParseFlag("25MiB", &size, &error));
  EXPECT_EQ(size.bytes, 25 << 20);
  EXPECT_EQ(AbslUnparseFlag(size), "25MiB");
  EXPECT_FALSE(AbslParseFlag("-1", &size, &error));
  EXPECT_EQ(size.bytes, 25 << 20);
  EXPECT_TRUE(AbslParseFlag("0", &size, &error));
  EXPECT_EQ(AbslUnparseFlag(size), "0");
}

TEST(ByteSizesTest, GeometricSizesEndAtTheLast) {
  EXPECT_EQ(*GeometricSizes(8, 64, 2), (std::vector<int64_t>{8, 16, 32, 64}));
  EXPECT_EQ(*GeometricSizes(8, 63, 2), (std::vector<int64_t>{8, 16, 32}));
  EXPECT_EQ(*GeometricSizes(5, 5, 10), (std::vector<int64_t>{5}));
  EXPECT_FALSE(GeometricSizes(6, 5, 2).ok());
  EXPECT_FALSE(GeometricSizes(1, 5, 1).ok());
}

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
