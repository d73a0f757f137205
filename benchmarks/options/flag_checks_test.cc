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
  ExpectFlagError(CheckNames("link", {"grpc", "rdma"}, {"grpc", "shm"}),
                  "--link: expected some of grpc, shm, found \"rdma\"");
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

TEST(FlagChecks, NumbersThatSeveralProgramsHaveNameTheirFlag) {
  EXPECT_TRUE(CheckAtLeast("rounds", 1, 1).ok());
  ExpectFlagError(CheckAtLeast("rounds", 1, 0), "--rounds: expected at least 1, found \"0\"");
  ExpectFlagError(CheckTimeout(absl::ZeroDuration()),
                  "--timeout: expected more than 0s, found \"0\"");
  ExpectFlagError(CheckConnections(257),
                  "--connections: expected 1 to 256, or 0 for the default, found \"257\"");
  EXPECT_TRUE(CheckBandwidths({"1gbit", "400Mbps"}).ok());
  EXPECT_THAT(CheckBandwidths({"1gbit", "fast"}).message(), HasSubstr("--bandwidth: "));
}

TEST(FlagChecks, AGlobalBatchIsSharedByTheWorkers) {
  EXPECT_EQ(*BatchPerWorker(8, 0, 3), 8);
  EXPECT_EQ(*BatchPerWorker(0, 0, 3), 0);
  EXPECT_EQ(*BatchPerWorker(0, 12, 3), 4);
  ExpectFlagError(BatchPerWorker(0, 13, 3).status(),
                  "--global_batch_size: expected a multiple of 3 workers, found \"13\"");
  ExpectFlagError(BatchPerWorker(8, 12, 3).status(),
                  "--global_batch_size: expected nothing beside --batch_size, found \"12\"");
  EXPECT_FALSE(BatchPerWorker(-1, 0, 3).ok());
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
