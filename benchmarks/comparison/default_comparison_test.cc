#include "benchmarks/comparison/default_comparison.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool Asks(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "compare");
  return AsksForDefault(static_cast<int>(flags.size()), flags.data());
}

TEST(DefaultComparisonTest, FlagsThatSayHowLeaveItTheDefault) {
  EXPECT_TRUE(Asks({}));
  EXPECT_TRUE(Asks({"--out", "folder", "-rounds=5", "--data=cifar10:x", "--bandwidth=none"}));
  EXPECT_TRUE(Asks({"--seed=3", "--", "--momentum=0.5"}));
}

TEST(DefaultComparisonTest, AFlagThatSaysWhatToCompareEndsIt) {
  EXPECT_FALSE(Asks({"--model=resnet18"}));
  EXPECT_FALSE(Asks({"--out=x", "--worker=2"}));
  EXPECT_FALSE(Asks({"--topologies", "ps"}));
  EXPECT_FALSE(Asks({"--channels_last"}));
}

TEST(DefaultComparisonTest, BothPartsAreWhatTheHeaderSays) {
  CompareOptions asked_for;
  asked_for.rounds = 4;
  asked_for.bandwidths = {"100mbit"};
  const std::vector<CompareOptions> parts = MakeDefaultComparison(asked_for);
  ASSERT_EQ(parts.size(), 2u);
  const auto names = [](const CompareOptions& options) {
    std::vector<std::string> described;
    const auto configurations = ListConfigurations(options);
    EXPECT_TRUE(configurations.ok()) << configurations.status();
    for (const Configuration& c : *configurations) described.push_back(Describe(c));
    return described;
  };
  EXPECT_THAT(names(parts[0]),
              ElementsAre("ps over grpc, 2 servers, 2 workers", "ps over shm, 2 servers, 2 workers",
                          "ring over grpc, 2 workers", "ring over shm, 2 workers"));
  EXPECT_THAT(names(parts[1]), ElementsAre("ps over grpc, colocated 3 servers, 3 workers, 100mbit",
                                           "ps over grpc, 3 servers, 3 workers, 100mbit",
                                           "ring over grpc, 3 workers, 100mbit"));
  EXPECT_EQ(parts[0].rounds, 4);
  EXPECT_EQ(parts[1].rounds, 4);
  EXPECT_EQ(parts[0].model, parts[1].model);
  EXPECT_EQ(parts[0].batch_size, parts[1].batch_size);
  asked_for.bandwidths.clear();
  EXPECT_EQ(MakeDefaultComparison(asked_for).size(), 1u);
}

TEST(DefaultComparisonTest, BandwidthsAreTheUsersOrTheDefaults) {
  EXPECT_THAT(*ResolveBandwidths({"auto"}, true), ElementsAre("250mbit", "400mbit"));
  EXPECT_THAT(*ResolveBandwidths({"auto"}, false), IsEmpty());
  EXPECT_THAT(*ResolveBandwidths({"none"}, true), IsEmpty());
  EXPECT_THAT(*ResolveBandwidths({}, true), IsEmpty());
  EXPECT_THAT(*ResolveBandwidths({"1gbit", "2.5Gbps"}, false), ElementsAre("1gbit", "2.5gbit"));
  EXPECT_THAT(ResolveBandwidths({"none", "1gbit"}, true).status().message(),
              HasSubstr("--bandwidth: expected auto or none alone"));
}

}  // namespace
}  // namespace gradsync
