#include "simulator/core_cost_fit.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/probe_of_test.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Costs of 10 us and 2 ns. Of M bytes a ring sends 2(n-1) M in all, servers and their workers
// 2 n M, chunk by chunk, and each has two ends.
std::vector<Probe> Probes() {
  std::vector<Probe> probes = {ProbeOf(2, 0, 1 << 18, 1 << 18), ProbeOf(4, 0, 1 << 18, 1 << 14),
                               ProbeOf(2, 2, 1 << 18, 1 << 12), ProbeOf(3, 1, 3 << 18, 1 << 18)};
  const double m = 1 << 20;
  probes[0].core_seconds = 2 * (2 * 4 * 10e-6 + 2 * m * 2e-9);
  probes[1].core_seconds = 2 * (6 * 64 * 10e-6 + 6 * m * 2e-9);
  probes[2].core_seconds = 2 * (4 * 256 * 10e-6 + 4 * m * 2e-9);
  probes[3].core_seconds = 2 * (6 * 12 * 10e-6 + 6 * 3 * m * 2e-9);
  return probes;
}

TEST(CoreCostFitTest, FindsWhatMessagesAndBytesCost) {
  const auto costs = FitCoreCosts(Probes(), 2);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->count, 2);
  EXPECT_NEAR(costs->seconds_per_message, 10e-6, 1e-9);
  EXPECT_NEAR(costs->seconds_per_byte, 2e-9, 1e-13);
}

TEST(CoreCostFitTest, NothingCostsLessThanNothing) {
  std::vector<Probe> probes = Probes();
  probes[2].core_seconds /= 100;  // the one with the most messages for its bytes
  const auto costs = FitCoreCosts(probes, 2);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->seconds_per_message, 0);
  EXPECT_GT(costs->seconds_per_byte, 0);
}

TEST(CoreCostFitTest, NeedsTwoProbesThatSayHowBusyTheCoresWere) {
  std::vector<Probe> probes = Probes();
  for (size_t i = 1; i < probes.size(); ++i) probes[i].core_seconds = 0;
  EXPECT_THAT(std::string(FitCoreCosts(probes, 2).status().message()),
              HasSubstr("expected at least 2 exchanges"));
  EXPECT_THAT(std::string(FitCoreCosts(Probes(), 0).status().message()),
              HasSubstr("expected at least 1 core, found 0"));
}

}  // namespace
}  // namespace gradsync
