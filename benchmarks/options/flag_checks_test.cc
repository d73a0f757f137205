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

TEST(FlagChecks, ConsistencyOtherThanBspNeedsServersThatUpdateOverGrpc) {
  using Names = std::vector<std::string>;
  const auto check = [](const Names& values, const Names& topologies, const Names& updates,
                        const Names& links, const Names& compressions) {
    return CheckConsistencies(values, topologies, updates, links, compressions);
  };
  const Names all = {"bsp", "ssp:2", "asp"};
  EXPECT_TRUE(check(all, {"ring", "ps"}, {"worker", "owner"}, {"shm", "grpc"}, {"none"}).ok());
  EXPECT_TRUE(check(all, {"ps"}, {"owner"}, {"auto"}, {"bf16", "none"}).ok());
  EXPECT_TRUE(check({"bsp"}, {"ring"}, {"worker"}, {"gloo"}, {"bf16"}).ok());
  ExpectFlagError(check({}, {"ps"}, {"owner"}, {"grpc"}, {"none"}),
                  "--consistency: expected some of bsp, ssp:S, asp, found \"\"");
  ExpectFlagError(check({"asp"}, {"ring"}, {"owner"}, {"grpc"}, {"none"}),
                  "--consistency: expected bsp without ps among the topologies, found \"asp\"");
  ExpectFlagError(check({"asp"}, {"ps"}, {"worker"}, {"grpc"}, {"none"}),
                  "--consistency: expected bsp without owner among --update, found \"asp\"");
  ExpectFlagError(check({"ssp:2"}, {"ps"}, {"owner"}, {"shm", "gloo"}, {"none"}),
                  "--consistency: expected bsp without grpc among the links, found \"ssp:2\"");
  ExpectFlagError(check({"asp"}, {"ps"}, {"owner"}, {"grpc"}, {"bf16"}),
                  "--consistency: expected bsp without none among --compression, found \"asp\"");
}

TEST(FlagChecks, NamesAreKnownOnesAndAtLeastOne) {
  EXPECT_TRUE(CheckNames("link", {"shm", "grpc"}, {"grpc", "shm"}).ok());
  ExpectFlagError(CheckNames("link", {}, {"grpc", "shm"}),
                  "--link: expected grpc, shm, found \"\"");
  ExpectFlagError(CheckNames("link", {"grpc", "tcp"}, {"grpc", "shm"}),
                  "--link: expected some of grpc, shm, found \"tcp\"");
}

TEST(FlagChecks, ServersBesideWorkersAndWiresNeedEmulatedHosts) {
  EXPECT_TRUE(CheckPlacements({"dedicated"}, false).ok());
  EXPECT_TRUE(CheckPlacements({"dedicated", "colocated", "mixed"}, true).ok());
  EXPECT_THAT(CheckPlacements({"mixed"}, false).message(), HasSubstr("found \"mixed\""));
  EXPECT_THAT(CheckPlacements({"apart"}, true).message(), HasSubstr("found \"apart\""));
  EXPECT_TRUE(CheckLinksBetweenHosts("link", {"auto", "grpc", "gloo"}).ok());
  EXPECT_THAT(CheckLinksBetweenHosts("link", {"grpc", "shm"}).message(), HasSubstr("--link: "));
}

TEST(FlagChecks, EachPlacementThatWasAskedForOccurs) {
  struct Case {
    std::string placement;
  };
  const std::vector<Case> cases = {{"dedicated"}, {""}, {"mixed"}};
  EXPECT_TRUE(CheckPlaced({"mixed", "dedicated"}, cases, "ranks").ok());
  ExpectFlagError(CheckPlaced({"mixed", "colocated"}, cases, "ranks"),
                  "--placement: expected at most as many --servers as --ranks for colocated, fewer "
                  "for mixed, found \"colocated\"");
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
