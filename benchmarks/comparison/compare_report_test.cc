#include "benchmarks/comparison/compare_report.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CompareReportTest : public ::testing::Test {
 protected:
  proto::Run* Add(const std::string& topology, int workers, int servers, const std::string& hash,
                  double rate = 100) {
    proto::Run* run = records_.add_runs();
    run->set_topology(topology);
    run->set_link(topology == "local" ? "" : "grpc");
    run->set_update("worker");
    run->set_workers(workers);
    run->set_servers(servers);
    run->set_params_sha256(hash);
    run->set_samples_per_s(rate);
    run->set_step_ms_p10(9e3 / rate);
    run->set_step_ms_p50(1e4 / rate);
    run->set_step_ms_p90(11e3 / rate);
    return run;
  }

  // As Add(), measured in rounds.
  proto::Run* AddRounds(const std::string& topology, int workers, int servers,
                        const std::vector<double>& rates) {
    proto::Run* run = Add(topology, workers, servers, "aa", rates[rates.size() / 2]);
    for (double rate : rates) {
      run->add_round_samples_per_s(rate);
      run->add_round_params_sha256("aa");
    }
    run->set_samples_per_s_low(*std::min_element(rates.begin(), rates.end()));
    run->set_samples_per_s_high(*std::max_element(rates.begin(), rates.end()));
    return run;
  }

  // On an emulated network, with a prediction of as much.
  proto::Run* AddOnNetwork(const std::string& topology, int servers, const std::string& placement,
                           const std::vector<double>& rates, const std::string& bandwidth) {
    proto::Run* run = AddRounds(topology, 3, servers, rates);
    run->set_placement(placement);
    run->set_bandwidth(bandwidth);
    *records_.add_predictions() = *run;
    return run;
  }

  proto::RunRecords records_;
};

// Four ranks that are two replicas of two stages train on what two whole ones do, and end with their bits.
TEST_F(CompareReportTest, MeshesAreComparedByTheSamplesOfAStep) {
  const auto add = [this](int workers, const std::string& mesh, const std::string& schedule,
                          int batch, const std::string& hash, double rate) {
    proto::Run* run = Add("ring", workers, 0, hash, rate);
    run->set_mesh(mesh);
    run->set_pipeline_schedule(schedule);
    if (!schedule.empty()) run->set_split("3");
    run->set_micro_batches(4);
    run->set_batch_size(batch);
  };
  add(2, "data=2", "", 8, "aa", 100);
  add(4, "data=2,pipeline=2", "gpipe", 8, "aa", 150);
  add(4, "data=2,pipeline=2", "1f1b", 8, "aa", 160);
  add(4, "pipeline=4", "1f1b", 16, "bb", 120);
  Verdict verdict = JudgeRuns(records_);
  EXPECT_TRUE(verdict.bits_agree);
  EXPECT_THAT(
      verdict.text,
      AllOf(
          HasSubstr("bits: identical in all 3 runs with 2 replicas of 4 micro-batches\n"),
          HasSubstr("bits: only one run with 1 replica of 4 micro-batches, nothing to compare\n"),
          HasSubstr("with 4 workers not decided between ring (data=2,pipeline=2, 1f1b, 4 "
                    "micro-batches) and ring (pipeline=4, 1f1b, 4 micro-batches): at least 1 round "
                    "more: 160.0 against 120.0 samples/s"),
          HasSubstr("and ring (data=2,pipeline=2, gpipe, 4 micro-batches): at least 1 round more: "
                    "160.0 against 150.0")));
  EXPECT_THAT(FormatRuns(records_), AllOf(HasSubstr("pipeline=4"), HasSubstr("4 x 16")));
  records_.mutable_runs(1)->set_params_sha256("cc");
  EXPECT_FALSE(JudgeRuns(records_).bits_agree);
}

// Stages on four hosts were put beside whole models with two servers on two hosts more.
TEST_F(CompareReportTest, OnANetworkArrangementsAreComparedOnAsManyHosts) {
  const auto add = [this](const std::string& topology, int servers, const std::string& mesh,
                          int micro_batches, double rate) {
    proto::Run* run = Add(topology, 4, servers, "aa", rate);
    run->set_bandwidth("1gbit");
    if (servers > 0) run->set_placement("dedicated");
    run->set_mesh(mesh);
    run->set_batch_size(8);
    run->set_micro_batches(micro_batches);
  };
  add("ring", 0, "data=4", 2, 100);
  add("ring", 0, "data=2,pipeline=2", 4, 120);
  add("ps", 2, "data=4", 2, 150);
  add("ps", 2, "data=2,pipeline=2", 4, 140);
  const std::string text = JudgeRuns(records_).text;
  EXPECT_THAT(text, AllOf(HasSubstr("at 1gbit with 4 workers on 4 hosts not decided"),
                          HasSubstr("120.0 against 100.0"),
                          HasSubstr("at 1gbit with 4 workers on 6 hosts not decided"),
                          HasSubstr("150.0 against 140.0"), Not(HasSubstr("150.0 against 120.0"))));
}

// Replicas are faster or slower than none, though one worker has nobody to exchange with.
TEST_F(CompareReportTest, OneWorkersReplicasAreComparedInSpeed) {
  AddRounds("ring", 1, 0, {100, 100});
  AddRounds("ring", 1, 0, {150, 150})->set_data_parallel(2);
  AddRounds("local", 1, 0, {500, 500});
  EXPECT_THAT(JudgeRuns(records_).text,
              AllOf(HasSubstr("speed: with 1 worker ring (2 replicas in each) was 50 % faster than "
                              "ring: 150.0 against 100.0 samples/s"),
                    Not(HasSubstr("500.0"))));
}

TEST_F(CompareReportTest, EqualBitsAreSaidPerNumberOfWorkers) {
  Add("ps", 1, 1, "aa");
  Add("ring", 1, 0, "aa");
  Add("local", 1, 0, "aa");
  Add("ps", 2, 1, "bb");
  Add("ps", 2, 2, "bb");
  const Verdict verdict = JudgeRuns(records_);
  EXPECT_TRUE(verdict.bits_agree);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("bits: identical in all 3 runs with 1 worker\n"),
                                  HasSubstr("bits: identical in all 2 runs with 2 workers\n")));
}

TEST_F(CompareReportTest, RunsThatDifferAreNamedAndFailTheVerdict) {
  Add("ps", 2, 1, "0123456789abcdef");
  Add("ring", 2, 0, "fedcba9876543210");
  Add("ring", 2, 0, "fedcba9876543210")->set_update("owner");
  const Verdict verdict = JudgeRuns(records_);
  EXPECT_FALSE(verdict.bits_agree);
  EXPECT_THAT(verdict.text,
              HasSubstr("bits: DIFFER between the 3 runs with 2 workers: 0123456789ab in ps (1 "
                        "server), fedcba987654 in ring and ring (update at owner)\n"));
}

TEST_F(CompareReportTest, BitsOfRunsThatDoNotWaitForAllAreNotCompared) {
  Add("ps", 2, 1, "aa");
  Add("ring", 2, 0, "aa");
  Add("ps", 2, 1, "bb")->set_consistency("asp");
  Add("ps", 2, 1, "cc", 1000)->set_consistency("ssp:2");
  const Verdict verdict = JudgeRuns(records_);
  EXPECT_TRUE(verdict.bits_agree);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("bits: identical in all 2 runs with 2 workers\n"),
                                  HasSubstr("ps (1 server, asp) with 2 workers is not compared"),
                                  HasSubstr("not decided between ps (1 server) and ring: "
                                            "at least 1 round more: ")));
}

TEST_F(CompareReportTest, BitsAreComparedWithinOneCodecAndTopologyOnly) {
  Add("ps", 2, 1, "aa");
  Add("ring", 2, 0, "aa");
  Add("ps", 2, 1, "bb")->set_compression("bf16");
  Add("ps", 2, 2, "bb")->set_compression("bf16");
  Add("ring", 2, 0, "cc")->set_compression("bf16");
  Verdict verdict = JudgeRuns(records_);
  EXPECT_TRUE(verdict.bits_agree) << verdict.text;
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("bits: identical in all 2 runs with 2 workers\n"),
                    HasSubstr("bits: identical in all 2 runs of ps under bf16 with 2 workers\n")));
  EXPECT_THAT(FormatRuns(records_), HasSubstr("codec"));
  Add("ring", 2, 0, "dd")->set_compression("bf16");
  verdict = JudgeRuns(records_);
  EXPECT_FALSE(verdict.bits_agree);
  EXPECT_THAT(verdict.text,
              HasSubstr("bits: DIFFER between the 2 runs of ring under bf16 with 2 workers: cc in "
                        "ring (bf16), dd in ring (bf16)\n"));
}

TEST_F(CompareReportTest, GlooBeyondTwoWorkersAndSeveralLocalWorkersAreExempt) {
  Add("ring", 3, 0, "aa");
  proto::Run* const gloo = Add("ring", 3, 0, "bb");
  gloo->set_link("gloo");
  gloo->set_own_order(true);
  Add("local", 3, 0, "cc");
  const Verdict verdict = JudgeRuns(records_);
  EXPECT_TRUE(verdict.bits_agree);
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("ring (gloo) with 3 workers is not compared: Gloo adds"),
                    HasSubstr("local with 3 workers is not compared"),
                    HasSubstr("only one run with 3 workers")));
}

TEST_F(CompareReportTest, NcclBeyondTwoWorkersIsExemptAndWhatItChoseIsSaid) {
  Add("ring", 3, 0, "aa")->set_wire_tx_bytes_max_node(44.7e6);
  Add("ring", 3, 0, "aa")->set_wire_tx_bytes_max_node(44.7e6);
  proto::Run* const nccl = Add("ring", 3, 0, "bb");
  nccl->set_link("nccl");
  nccl->set_own_order(true);
  nccl->set_bytes_uncounted(true);
  nccl->set_device("NVIDIA H200");
  nccl->set_precision("bf16");
  nccl->set_nccl_version("2.28.9");
  nccl->set_nccl_chosen("AllReduce RING/SIMPLE");
  nccl->set_wire_tx_bytes_max_node(0);
  EXPECT_TRUE(JudgeRuns(records_).bits_agree);
  EXPECT_THAT(JudgeRuns(records_).text,
              AllOf(HasSubstr("ring (nccl) with 3 workers is not compared: NCCL adds in an order"),
                    HasSubstr("identical in all 2 runs with 3 workers")));
  EXPECT_THAT(FormatRuns(records_),
              AllOf(HasSubstr("device"), HasSubstr("NVIDIA H200 bf16"), Not(HasSubstr("0.00 ")),
                    HasSubstr("NCCL 2.28.9, ring (nccl) with 3 workers: asked for nothing, chose "
                              "AllReduce RING/SIMPLE\n")));
  nccl->set_nccl_asked("NCCL_ALGO=Ring");
  EXPECT_THAT(FormatRuns(records_), HasSubstr("asked for NCCL_ALGO=Ring, chose"));
}

TEST_F(CompareReportTest, AGpuNeedNotRepeatItsBits) {
  Add("ps", 2, 1, "aa")->set_device("NVIDIA H200");
  Add("ring", 2, 0, "aa")->set_device("NVIDIA H200");
  EXPECT_THAT(JudgeRuns(records_).text, HasSubstr("identical in all 2 runs with 2 workers"));
  Add("ring", 2, 0, "bb")->set_device("NVIDIA H200");
  const Verdict verdict = JudgeRuns(records_);
  EXPECT_TRUE(verdict.bits_agree);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("need agree on a GPU"), Not(HasSubstr("identical"))));
}

TEST_F(CompareReportTest, GlooWithTwoWorkersMustAgree) {
  Add("ring", 2, 0, "aa");
  Add("ring", 2, 0, "bb")->set_link("gloo");
  EXPECT_FALSE(JudgeRuns(records_).bits_agree);
}

TEST_F(CompareReportTest, TheFasterTopologyIsNamedWithItsLeadAndTheIntervalOfRatios) {
  AddRounds("ps", 2, 1, {40, 50, 60});
  AddRounds("ps", 2, 2, {80, 100, 125});
  AddRounds("ring", 2, 0, {112, 150, 200});
  EXPECT_THAT(
      JudgeRuns(records_).text,
      AllOf(HasSubstr("  speed: with 2 workers ring was 50 % faster than ps (2 servers): 150.0 "
                      "against 100.0 samples/s, 1.498 times (1.115 to 2.011)\n"),
            HasSubstr("in at most 5 of 100 such pages"),
            HasSubstr("the servers use the workers' cores")));
}

// Medians that differ were a winner, however the rounds went.
TEST_F(CompareReportTest, RoundsThatDisagreeDecideNothing) {
  AddRounds("ps", 2, 1, {90, 110, 120});
  AddRounds("ring", 2, 0, {100, 100, 100});
  EXPECT_THAT(
      JudgeRuns(records_).text,
      AllOf(HasSubstr("speed: with 2 workers not decided between ps (1 server) and ring: at "
                      "least 34 rounds more: 110.0 against 100.0 samples/s, 1.059 times "
                      "(0.624 to 1.797)\n"),
            Not(HasSubstr("was"))));
}

TEST_F(CompareReportTest, RoundsThatAgreeOnOneAreEqualWithinTheMargin) {
  AddRounds("ps", 2, 1, {100.1, 99.9, 100.1, 99.8});
  AddRounds("ring", 2, 0, {100, 100, 100, 100});
  EXPECT_THAT(JudgeRuns(records_).text,
              AllOf(HasSubstr("with 2 workers ps (1 server) and ring are equal within 2 %: 100.1 "
                              "against 100.0 samples/s"),
                    Not(HasSubstr("faster than"))));
}

TEST_F(CompareReportTest, OneRoundDecidesNothing) {
  Add("ps", 2, 1, "aa", 50);
  Add("ring", 2, 0, "aa", 150);
  EXPECT_THAT(JudgeRuns(records_).text,
              AllOf(HasSubstr("not decided between ring and ps (1 server): at least 1 round more: "
                              "150.0 against 50.0 samples/s\n"),
                    Not(HasSubstr("faster"))));
}

// A ring over NCCL that beat servers of the host was called the faster topology.
TEST_F(CompareReportTest, TopologiesAreComparedOverOneTransportAndTransportsBesideThem) {
  AddRounds("ps", 2, 1, {80, 80})->set_link("shm");
  AddRounds("ring", 2, 0, {100, 100})->set_link("shm");
  proto::Run* const nccl = AddRounds("ring", 2, 0, {200, 200});
  nccl->set_link("nccl");
  EXPECT_THAT(
      JudgeRuns(records_).text,
      AllOf(HasSubstr(
                "ring (shm) was 25 % faster than ps (1 server, shm): 100.0 against 80.0 "
                "samples/s, 1.250 times (1.250 to 1.250); both go through the host: a comparison "
                "of topologies\n"),
            HasSubstr(
                "ring (nccl) was 2.0 times as fast as ring (shm): 200.0 against 100.0 "
                "samples/s, 2.000 times (2.000 to 2.000); NCCL between GPUs against a way through "
                "the host: a comparison of transports, not of topologies\n")));
  nccl->set_invalid("test mode");
  EXPECT_THAT(JudgeRuns(records_).text, Not(HasSubstr("transports")));
}

TEST_F(CompareReportTest, ALargeLeadIsAFactorASmallOneHasADecimalAndOneWorkerIsNoRace) {
  AddRounds("ps", 1, 1, {50, 50});
  AddRounds("ring", 1, 0, {150, 150});
  EXPECT_THAT(JudgeRuns(records_).text, Not(HasSubstr("speed")));
  AddRounds("ps", 4, 1, {375, 375});
  AddRounds("ring", 4, 0, {150, 150});
  AddRounds("ps", 8, 1, {100.2, 100.2});
  AddRounds("ring", 8, 0, {100, 100});
  EXPECT_THAT(
      JudgeRuns(records_).text,
      AllOf(HasSubstr("speed: with 4 workers ps (1 server) was 2.5 times as fast as ring: 375.0 "),
            HasSubstr("with 8 workers ps (1 server) was 0.2 % faster than ring: ")));
}

TEST_F(CompareReportTest, OnANetworkServersOnTheSameHostsAndOnMoreAreComparedOneByOne) {
  for (const char* bandwidth : {"1gbit", "200mbit"}) {
    AddOnNetwork("ring", 0, "", {100, 100}, bandwidth);
    AddOnNetwork("ps", 3, "colocated", {101, 99}, bandwidth);
    AddOnNetwork("ps", 3, "dedicated", {140, 140}, bandwidth);
  }
  AddRounds("ps", 3, 1, {50, 50});
  AddRounds("ring", 3, 0, {60, 60});
  const std::string text = JudgeRuns(records_).text;
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("at 200mbit with 3 workers, on the same hosts, not decided between "),
            HasSubstr(
                "at 200mbit with 3 workers, with servers on 3 hosts more, ps (3 servers) was 40 % "
                "faster than ring: 140.0 against 100.0 samples/s, 1.400 times (1.400 to 1.400); "
                "predicted 1.400 times\n")));
  // The slowest network first, and this machine alone last.
  EXPECT_LT(text.find("at 200mbit"), text.find("at 1gbit"));
  EXPECT_LT(text.find("at 1gbit"), text.find("speed: with 3 workers"));
  EXPECT_THAT(FormatRuns(records_), AllOf(HasSubstr("\n200mbit   "), HasSubstr("\nnone  ")));
}

TEST_F(CompareReportTest, InvalidRunsOnNetworksDoNotRace) {
  AddOnNetwork("ring", 0, "", {100, 100}, "1gbit");
  AddOnNetwork("ps", 3, "colocated", {200, 200}, "1gbit")->set_invalid("cores");
  EXPECT_THAT(JudgeRuns(records_).text,
              AllOf(HasSubstr("  speed: at 1gbit with 3 workers 1 of 2 runs left out as INVALID"),
                    Not(HasSubstr("samples/s"))));
  EXPECT_THAT(FormatRuns(records_), HasSubstr("with 3 workers at 1gbit: cores\n"));
}

TEST_F(CompareReportTest, BitsOfAllRoundsAndNetworksAreCompared) {
  AddOnNetwork("ring", 0, "", {100, 100}, "1gbit");
  proto::Run* const other = AddOnNetwork("ring", 0, "", {50, 50}, "200mbit");
  EXPECT_THAT(JudgeRuns(records_).text,
              HasSubstr("bits: identical in all 2 runs with 3 workers, 2 rounds each\n"));
  other->set_round_params_sha256(1, "bb");
  const Verdict verdict = JudgeRuns(records_);
  EXPECT_FALSE(verdict.bits_agree);
  EXPECT_THAT(verdict.text,
              HasSubstr("DIFFER between the 2 runs with 3 workers, 2 rounds each: aa in "
                        "ring at 1gbit and ring at 200mbit, bb in ring at 200mbit\n"));
}

TEST_F(CompareReportTest, JobsOfOtherLengthsHaveOtherBits) {
  Add("ring", 2, 0, "aa")->set_steps(3);
  Add("ps", 2, 1, "bb")->set_steps(9);
  EXPECT_TRUE(JudgeRuns(records_).bits_agree);
}

TEST_F(CompareReportTest, WithoutServersNothingIsSaidAboutThem) {
  Add("ring", 2, 0, "aa");
  EXPECT_THAT(JudgeRuns(records_).text, Not(HasSubstr("server")));
}

TEST_F(CompareReportTest, TheTableHasARowPerRun) {
  Add("ps", 2, 1, "0123456789abcdef", 80)->set_scaling_efficiency(0.5);
  Add("local", 1, 0, "aa");
  EXPECT_THAT(FormatRuns(records_), AllOf(HasSubstr("125.0 (112.5-137.5)"), HasSubstr("0.50"),
                                          HasSubstr("0123456789ab\n"), HasSubstr("local     -")));
}

}  // namespace
}  // namespace gradsync
