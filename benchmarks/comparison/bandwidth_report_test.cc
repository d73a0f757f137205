#include "benchmarks/comparison/compare_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

proto::Run MakeRun(const std::string& topology, const std::string& placement, int servers,
                   const std::string& bandwidth, double rate) {
  proto::Run run;
  run.set_topology(topology);
  run.set_placement(placement);
  run.set_link("grpc");
  run.set_update("worker");
  run.set_workers(3);
  run.set_servers(servers);
  run.set_bandwidth(bandwidth);
  run.set_samples_per_s(rate);
  return run;
}

class BandwidthReportTest : public ::testing::Test {
 protected:
  void Predict(const std::string& bandwidth, double scale) {
    *records_.add_predictions() = MakeRun("ring", "", 0, bandwidth, 60 * scale);
    *records_.add_predictions() = MakeRun("ps", "colocated", 3, bandwidth, 60.3 * scale);
    *records_.add_predictions() = MakeRun("ps", "dedicated", 3, bandwidth, 80 * scale);
  }

  proto::RunRecords records_;
};

TEST_F(BandwidthReportTest, MeasuredStandsBesidePredictedForEachBandwidth) {
  for (const char* bandwidth : {"1gbit", "100mbit", "25mbit"}) Predict(bandwidth, 2);
  proto::Run run = MakeRun("ring", "", 0, "100mbit", 118);
  for (double rate : {117, 119}) run.add_round_samples_per_s(rate);
  run.set_samples_per_s_low(117);
  run.set_samples_per_s_high(119);
  *records_.add_runs() = run;
  EXPECT_EQ(
      FormatBandwidths(records_, {"100mbit"}),
      "BANDWIDTH: samples per second of 3 workers, by what each host's link carries each way; in "
      "brackets smallest to largest of 2 rounds, which hold the true median 50 times in 100\n"
      "          |                                |  ps, 3 servers | ps, 3 servers\n"
      "          |                ring            | beside workers |  on own hosts\n"
      "          |             3 hosts            |        3 hosts |       6 hosts\n"
      "bandwidth |            measured  predicted |      predicted |     predicted\n"
      "--------- | -------------------  --------- | -------------- | -------------\n"
      "  100mbit | 118.0 (117.0-119.0)      120.0 |          120.6 |         160.0\n"
      "    1gbit |                   -      120.0 |          120.6 |         160.0\n");
}

TEST_F(BandwidthReportTest, OneBandwidthIsNoScaling) {
  *records_.add_runs() = MakeRun("ring", "", 0, "100mbit", 118);
  EXPECT_EQ(FormatBandwidths(records_, {"100mbit"}), "");
  EXPECT_EQ(FormatBandwidths(proto::RunRecords(), {}), "");
}

TEST_F(BandwidthReportTest, RunsThatDifferInMoreAreNotInTheTable) {
  for (const char* bandwidth : {"1gbit", "100mbit"}) Predict(bandwidth, 1);
  proto::Run owner = MakeRun("ring", "", 0, "100mbit", 777);
  owner.set_update("owner");
  *records_.add_runs() = owner;
  EXPECT_THAT(FormatBandwidths(records_, {"100mbit"}),
              AllOf(HasSubstr("100mbit"), Not(HasSubstr("777"))));
}

TEST_F(BandwidthReportTest, WhereNothingValidIsMeasuredTheVerdictIsThePredictions) {
  for (const char* bandwidth : {"1gbit", "400mbit"}) Predict(bandwidth, 1);
  *records_.add_runs() = MakeRun("ring", "", 0, "1gbit", 118);
  proto::Run busy = MakeRun("ring", "", 0, "400mbit", 118);
  busy.set_invalid("cores");
  *records_.add_runs() = busy;
  EXPECT_EQ(JudgePredictions(records_, {"400mbit", "1gbit"}),
            "  predicted, not measured: at 400mbit with 3 workers ps with 3 servers beside the "
            "workers as fast as the ring, ps with 3 servers on hosts of their own 33 % faster than "
            "the ring\n");
}

TEST_F(BandwidthReportTest, APredictionIsOfItsConfiguration) {
  Predict("400mbit", 1);
  EXPECT_EQ(PredictionOf(records_, MakeRun("ring", "", 0, "400mbit", 1))->samples_per_s(), 60);
  EXPECT_EQ(PredictionOf(records_, MakeRun("ps", "dedicated", 3, "400mbit", 1))->samples_per_s(),
            80);
  EXPECT_EQ(PredictionOf(records_, MakeRun("ps", "dedicated", 2, "400mbit", 1)), nullptr);
  EXPECT_EQ(PredictionOf(records_, MakeRun("ring", "", 0, "1gbit", 1)), nullptr);
}

}  // namespace
}  // namespace gradsync
