#include "simulator/calibration.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/clusters_of_test.h"
#include "simulator/simulate.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Few bytes and many, few messages and many, a short ring and a longer one.
std::vector<Probe> Probes(const LinkConstants& truth) {
  std::vector<Probe> probes = {ProbeOf(2, 0, 1024, 0), ProbeOf(4, 0, 1024, 0),
                               ProbeOf(2, 0, 1 << 20, 4096), ProbeOf(2, 1, 1 << 20, 4096),
                               ProbeOf(2, 0, 4 << 20, 0)};
  for (Probe& probe : probes) {
    Cluster cluster = probe.cluster;
    cluster.constants = truth;
    probe.seconds = *SimulateExchange(probe.plan, cluster);
  }
  return probes;
}

TEST(CalibrationTest, FindsTheConstantsThatMadeTheTimes) {
  const LinkConstants truth = {0.91, 400e-6, 35e-6, 2e-3};
  LinkConstants start;
  start.rate_factor = 0.91;  // from elsewhere
  const auto fit = Calibrate(
      Probes(truth),
      {LinkConstant::kLatency, LinkConstant::kSecondsPerMessage, LinkConstant::kSecondsPerStep},
      start);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->constants.latency, truth.latency, 0.02 * truth.latency);
  EXPECT_NEAR(fit->constants.seconds_per_message, truth.seconds_per_message, 1e-6);
  EXPECT_NEAR(fit->constants.seconds_per_step, truth.seconds_per_step, 4e-5);
  EXPECT_EQ(fit->constants.rate_factor, 0.91);
  EXPECT_LT(fit->worst_error, 0.005);
}

TEST(CalibrationTest, FindsTheRate) {
  LinkConstants truth;
  truth.rate_factor = 0.7;
  const auto fit = Calibrate(Probes(truth), {LinkConstant::kRateFactor});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->constants.rate_factor, 0.7, 1e-3);
}

TEST(CalibrationTest, TimesThatNothingExplainsGiveNoNegativeConstants) {
  std::vector<Probe> probes = Probes({0.94, 10e-6, 0, 0});
  for (Probe& probe : probes) probe.seconds *= 0.8;  // faster than the interface
  const auto fit = Calibrate(probes, {LinkConstant::kLatency, LinkConstant::kSecondsPerMessage,
                                      LinkConstant::kSecondsPerStep});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_GE(fit->constants.latency, 0);
  EXPECT_EQ(fit->constants.seconds_per_message, 0);
  EXPECT_EQ(fit->constants.seconds_per_step, 0);
  EXPECT_GT(fit->worst_error, 0.2);
}

TEST(CalibrationTest, RefusesToFitMoreThanItCanTellApart) {
  std::vector<Probe> probes = Probes({0.94, 0, 0, 0});
  const auto message = [&](const std::vector<LinkConstant>& free) {
    return std::string(Calibrate(probes, free).status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("expected 1 to 3 free constants, found 0"));
  probes.resize(1);
  EXPECT_THAT(message({LinkConstant::kLatency, LinkConstant::kSecondsPerStep}),
              HasSubstr("expected at least 2 probes, found 1"));
  probes[0].seconds = 0;
  EXPECT_THAT(message({LinkConstant::kLatency}), HasSubstr("more than 0 seconds, found 0"));
}

// Costs of 10 us and 2 ns. Of M bytes a ring sends 2(n-1) M in all, servers and their workers
// 2 n M, chunk by chunk, and each has two ends.
std::vector<Probe> ProbesOfCores() {
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
  const auto costs = FitCoreCosts(ProbesOfCores(), 2);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->count, 2);
  EXPECT_NEAR(costs->seconds_per_message, 10e-6, 1e-9);
  EXPECT_NEAR(costs->seconds_per_byte, 2e-9, 1e-13);
}

TEST(CoreCostFitTest, NothingCostsLessThanNothing) {
  std::vector<Probe> probes = ProbesOfCores();
  probes[2].core_seconds /= 100;  // the one with the most messages for its bytes
  const auto costs = FitCoreCosts(probes, 2);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->seconds_per_message, 0);
  EXPECT_GT(costs->seconds_per_byte, 0);
}

TEST(CoreCostFitTest, NeedsTwoProbesThatSayHowBusyTheCoresWere) {
  std::vector<Probe> probes = ProbesOfCores();
  for (size_t i = 1; i < probes.size(); ++i) probes[i].core_seconds = 0;
  EXPECT_THAT(std::string(FitCoreCosts(probes, 2).status().message()),
              HasSubstr("expected at least 2 exchanges"));
  EXPECT_THAT(std::string(FitCoreCosts(ProbesOfCores(), 0).status().message()),
              HasSubstr("expected at least 1 core, found 0"));
}

}  // namespace
}  // namespace gradsync
