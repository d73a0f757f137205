#include "benchmarks/exchange/sync_bench_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const SyncBenchOptions& options) {
  const auto cases = ListCases(options);
  EXPECT_EQ(cases.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(cases.status().message());
}

std::vector<SyncBenchCase> CasesOf(const SyncBenchOptions& options) {
  return ListCases(options).value();
}

std::vector<std::string> NamesOf(const SyncBenchOptions& options) {
  std::vector<std::string> names;
  for (const SyncBenchCase& c : CasesOf(options)) names.push_back(Describe(c));
  return names;
}

TEST(SyncBenchOptionsTest, EachSizeIsMeasuredUnderAllTopologiesBeforeTheNext) {
  SyncBenchOptions options;
  options.links = {"grpc"};
  options.workers = {"2", "4"};
  options.bytes = {"4KiB", "25MiB"};
  EXPECT_THAT(
      NamesOf(options),
      testing::ElementsAre(
          "ring over grpc, ranks 2, 4KiB", "ps over grpc, servers 1, ranks 2, 4KiB",
          "ps over grpc, servers 2, ranks 2, 4KiB", "ring over grpc, ranks 2, 25MiB",
          "ps over grpc, servers 1, ranks 2, 25MiB", "ps over grpc, servers 2, ranks 2, 25MiB",
          "ring over grpc, ranks 4, 4KiB", "ps over grpc, servers 1, ranks 4, 4KiB",
          "ps over grpc, servers 2, ranks 4, 4KiB", "ring over grpc, ranks 4, 25MiB",
          "ps over grpc, servers 1, ranks 4, 25MiB", "ps over grpc, servers 2, ranks 4, 25MiB"));
}

TEST(SyncBenchOptionsTest, SizesCanBeSweptAsInNcclTests) {
  SyncBenchOptions options;
  options.topologies = {"ring"};
  options.min_bytes = "1K";
  options.max_bytes = "64K";
  options.factor = 4;
  std::vector<int64_t> sizes;
  for (const SyncBenchCase& c : CasesOf(options)) sizes.push_back(c.exchange.bytes);
  EXPECT_THAT(sizes, testing::ElementsAre(1024, 4096, 16384, 65536));
}

TEST(SyncBenchOptionsTest, UsualSizesAreMeasuredWhenNoneIsAskedFor) {
  SyncBenchOptions options;
  options.topologies = {"ring"};
  EXPECT_EQ(CasesOf(options).size(), 4u);
}

TEST(SyncBenchOptionsTest, GlooIsMeasuredWhereItCanBe) {
  SyncBenchOptions options;
  options.links = {"grpc", "gloo"};
  options.bytes = {"4KiB"};
  options.servers = {"1"};
  options.updates = {"worker", "owner"};
  EXPECT_THAT(NamesOf(options),
              testing::ElementsAre(
                  "ring over grpc, ranks 2, 4KiB", "ring over grpc, update at owner, ranks 2, 4KiB",
                  "ring over gloo, ranks 2, 4KiB", "ps over grpc, servers 1, ranks 2, 4KiB",
                  "ps over grpc, update at owner, servers 1, ranks 2, 4KiB"));
  options.topologies = {"ps"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--link: "));
}

TEST(SyncBenchOptionsTest, SharedMemoryIsMeasuredUnderAllTopologiesAndUpdateSites) {
  SyncBenchOptions options;
  options.links = {"shm"};
  options.bytes = {"4KiB"};
  options.servers = {"1"};
  options.updates = {"worker", "owner"};
  EXPECT_THAT(NamesOf(options),
              testing::ElementsAre("ring over shm, ranks 2, 4KiB",
                                   "ring over shm, update at owner, ranks 2, 4KiB",
                                   "ps over shm, servers 1, ranks 2, 4KiB",
                                   "ps over shm, update at owner, servers 1, ranks 2, 4KiB"));
}

TEST(SyncBenchOptionsTest, PlacementsThatCannotBeAreLeftOut) {
  SyncBenchOptions options;
  options.topologies = {"ring", "ps"};
  options.bandwidths = {"400mbit"};
  options.bytes = {"4KiB"};
  options.workers = {"3"};
  options.servers = {"2", "4"};
  options.placements = {"dedicated", "colocated", "mixed"};
  EXPECT_THAT(
      NamesOf(options),
      testing::ElementsAre("ring, ranks 3, 4KiB", "ps, servers 2, ranks 3, 4KiB",
                           "ps, servers 4, ranks 3, 4KiB", "ps, servers 2 colocated, ranks 3, 4KiB",
                           "ps, servers 2 mixed, ranks 3, 4KiB"));
}

TEST(SyncBenchOptionsTest, EachBandwidthHasAllMeasurements) {
  SyncBenchOptions options;
  options.topologies = {"ring"};
  options.bytes = {"4KiB"};
  options.bandwidths = {"400mbit", "1Gbps"};
  const std::vector<SyncBenchCase> cases = CasesOf(options);
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].job.bandwidth, "400mbit");
  EXPECT_EQ(cases[1].job.bandwidth, "1gbit");
  EXPECT_DOUBLE_EQ(cases[1].bytes_per_second, 1.25e8);
  options.emulate = false;
  EXPECT_THAT(ErrorOf(options), HasSubstr("--bandwidth: expected one with --noemulate"));
}

TEST(SyncBenchOptionsTest, MistakesNameTheFlagAndWhatCame) {
  SyncBenchOptions options;
  options.topologies = {"star"};
  EXPECT_EQ(ErrorOf(options), "--topology: expected some of ring, ps, found \"star\"");
  options = SyncBenchOptions();
  options.workers = {"0"};
  EXPECT_EQ(ErrorOf(options),
            "--workers: expected numbers from 1 to 256, such as 1,2, found \"0\"");
  options = SyncBenchOptions();
  options.bytes = {"4KiB", "lots"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--bytes: "));
  EXPECT_THAT(ErrorOf(options), HasSubstr("\"lots\""));
  options.min_bytes = "4K";
  EXPECT_THAT(ErrorOf(options), HasSubstr("-b, -e and -f"));
  options = SyncBenchOptions();
  options.max_bytes = "1K";
  EXPECT_THAT(ErrorOf(options), HasSubstr("--max_bytes: "));
  options = SyncBenchOptions();
  options.links = {"gloo"};
  options.topologies = {"ps"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--link: expected grpc, or ring among --topology"));
  options = SyncBenchOptions();
  options.placements = {"colocated"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--placement: "));
  options = SyncBenchOptions();
  options.bandwidths = {"400mbit"};
  options.placements = {"mixed"};
  options.servers = {"2"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--placement: expected at most as many --servers"))
      << "two ranks have no mixed placement with two dedicated servers";
  options.servers = {"1"};
  options.links = {"shm"};
  EXPECT_THAT(ErrorOf(options),
              HasSubstr("--link: expected grpc, tcp, gloo or auto with --bandwidth"));
  options.links = {"grpc"};
  options.server_weights = "1,2";
  EXPECT_THAT(ErrorOf(options), HasSubstr("--server_weights: expected one for each of 3 servers"));
  options = SyncBenchOptions();
  options.emulate = false;
  EXPECT_THAT(ErrorOf(options), HasSubstr("--emulate: "));
  options = SyncBenchOptions();
  options.updates = {"nobody"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--update: "));
  options = SyncBenchOptions();
  options.iterations = 0;
  EXPECT_THAT(ErrorOf(options), HasSubstr("--iterations: "));
  options = SyncBenchOptions();
  options.bandwidths = {"fast"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--bandwidth: "));
  options = SyncBenchOptions();
  options.chunk_bytes = "100";
  EXPECT_THAT(ErrorOf(options), HasSubstr("--chunk_bytes: "));
}

TEST(SyncBenchOptionsTest, ARankIsToldEverythingThatItsJobDependsOn) {
  SyncBenchOptions options;
  options.topologies = {"ring"};
  options.bytes = {"25MiB"};
  options.connections = 3;
  options.chunk_bytes = "64KiB";
  EXPECT_EQ(RankSpecOf(CasesOf(options).front()).ShortDebugString(),
            "job { topology: \"ring\" link: \"auto\" update: \"worker\" consistency: \"bsp\" "
            "compression: \"none\" connections: 3 device: \"cpu\" weights_by_host: true } "
            "exchange { bytes: 26214400 bucket_bytes: 26214400 chunk_bytes: 65536 iterations: 20 "
            "warmup: 5 }");
}

TEST(SyncBenchOptionsTest, OnlyRanksOfServersAreToldTheWeights) {
  SyncBenchOptions options;
  options.links = {"grpc"};
  options.servers = {"2"};
  options.bytes = {"4KiB"};
  options.server_weights = "3,1";
  const std::vector<SyncBenchCase> cases = CasesOf(options);
  ASSERT_EQ(cases.size(), 2u);
  const proto::RankSpec ring = RankSpecOf(cases[0]);
  EXPECT_TRUE(ring.job().weights_by_host());
  EXPECT_THAT(ring.job().server_weights(), testing::IsEmpty());
  const proto::RankSpec ps = RankSpecOf(cases[1]);
  EXPECT_FALSE(ps.job().weights_by_host());
  EXPECT_THAT(ps.job().server_weights(), testing::ElementsAre(3, 1));
}

TEST(SyncBenchOptionsTest, RanksAreToldTheDevice) {
  SyncBenchOptions options;
  options.links = {"shm", "nccl"};
  options.servers = {"1"};
  options.updates = {"worker", "owner"};
  options.bytes = {"4KiB"};
  options.device = "cuda";
  for (const auto& c : CasesOf(options)) EXPECT_EQ(RankSpecOf(c).job().device(), "cuda");
  EXPECT_THAT(NamesOf(options),
              testing::ElementsAre(
                  "ring over shm, ranks 2, 4KiB", "ring over shm, update at owner, ranks 2, 4KiB",
                  "ring over nccl, ranks 2, 4KiB", "ring over nccl, update at owner, ranks 2, 4KiB",
                  "ps over shm, servers 1, ranks 2, 4KiB",
                  "ps over shm, update at owner, servers 1, ranks 2, 4KiB",
                  "ps over nccl, servers 1 colocated, ranks 2, 4KiB",
                  "ps over nccl, update at owner, servers 1 colocated, ranks 2, 4KiB"));
}

TEST(SyncBenchOptionsTest, ALinkOfRingsAloneLeavesParameterServersOut) {
  SyncBenchOptions options;
  options.links = {"gloo"};
  options.bytes = {"4KiB"};
  EXPECT_THAT(NamesOf(options), testing::ElementsAre("ring over gloo, ranks 2, 4KiB"));
}

TEST(SyncBenchOptionsTest, ServersOverNcclAreRanksAndNoProcesses) {
  SyncBenchOptions options;
  options.links = {"nccl"};
  options.topologies = {"ps"};
  options.servers = {"1", "2", "3"};
  options.bytes = {"4KiB"};
  const std::vector<SyncBenchCase> cases = CasesOf(options);
  ASSERT_EQ(cases.size(), 2u);  // three would be more than there are ranks
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cases[i].job.servers, i + 1);
    EXPECT_EQ(ServerProcesses(cases[i].job), 0);
    EXPECT_EQ(RankSpecOf(cases[i]).job().owners(), i + 1);
  }
}

TEST(SyncBenchOptionsTest, SixteenBitsAreMeasuredWhereSomethingIsSent) {
  SyncBenchOptions options;
  options.topologies = {"ring"};
  options.links = {"grpc", "shm"};
  options.bytes = {"4KiB"};
  options.compressions = {"none", "bf16"};
  EXPECT_THAT(NamesOf(options), testing::ElementsAre("ring over grpc, ranks 2, 4KiB",
                                                     "ring over grpc, bf16, ranks 2, 4KiB",
                                                     "ring over shm, ranks 2, 4KiB"));
  EXPECT_EQ(RankSpecOf(CasesOf(options)[1]).job().compression(), "bf16");
  options.links = {"shm"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--compression: "));
  options.compressions = {"topk:0.1"};
  EXPECT_THAT(ErrorOf(options), HasSubstr("--compression: expected some of none, fp16, bf16"));
}

}  // namespace
}  // namespace gradsync
