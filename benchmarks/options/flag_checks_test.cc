#include "benchmarks/options/flag_checks.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectFlagError(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), message);
}

TEST(FlagChecks, ErrorsOfOthersGetTheNameOfTheFlagAndAreInvalidArguments) {
  ExpectFlagError(Named("profile", absl::NotFoundError("a.json: no such file")),
                  "--profile: a.json: no such file");
}

TEST(FlagChecks, NamesAreKnownOnesAndAtLeastOne) {
  EXPECT_TRUE(CheckNames("link", {"shm", "grpc"}, {"grpc", "shm"}).ok());
  ExpectFlagError(CheckNames("link", {}, {"grpc", "shm"}),
                  "--link: expected grpc, shm, found \"\"");
  ExpectFlagError(CheckNames("link", {"grpc", "tcp"}, {"grpc", "shm"}),
                  "--link: expected some of grpc, shm, found \"tcp\"");
}

TEST(FlagChecks, CountsKeepTheirOrderAndTheirBounds) {
  EXPECT_THAT(ParseCounts("workers", {"8", "1", "8"}, 8).value(), ElementsAre(8, 1, 8));
  for (const std::string bad : {"0", "9", "-1", "two", ""}) {
    ExpectFlagError(ParseCounts("workers", {"2", bad}, 8).status(),
                    "--workers: expected numbers from 1 to 8, such as 1,2, found \"" + bad + "\"");
  }
  ExpectFlagError(ParseCounts("servers", {}, 8).status(),
                  "--servers: expected numbers from 1 to 8, such as 1,2, found \"\"");
}

TEST(FlagChecks, CountsWithoutAMostSayOnlyTheLeast) {
  EXPECT_THAT(ParseCounts("workers", {"1000000"}, kNoMost).value(), ElementsAre(1000000));
  ExpectFlagError(ParseCounts("workers", {"0"}, kNoMost).status(),
                  "--workers: expected numbers of at least 1, such as 1,2, found \"0\"");
}

TEST(FlagChecks, SizesNameTheirFlag) {
  EXPECT_EQ(ParseSize("bucket_bytes", "25MiB").value(), 25 << 20);
  const absl::Status bad = ParseSize("bucket_bytes", "lots").status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.message(), HasSubstr("--bucket_bytes: "));
  EXPECT_THAT(bad.message(), HasSubstr("lots"));
}

TEST(FlagChecks, ChunksAreAutomaticOrMultiplesOf64) {
  EXPECT_EQ(ParseChunkBytes("0").value(), 0);
  EXPECT_EQ(ParseChunkBytes("64").value(), 64);
  EXPECT_EQ(ParseChunkBytes("1MiB").value(), 1 << 20);
  ExpectFlagError(ParseChunkBytes("100").status(),
                  "--chunk_bytes: expected 0 (automatic) or a multiple of 64, found \"100\"");
  EXPECT_THAT(ParseChunkBytes("").status().message(), HasSubstr("--chunk_bytes: "));
}

}  // namespace
}  // namespace gradsync
