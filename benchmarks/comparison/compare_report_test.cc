#include "benchmarks/comparison/compare_report.h"

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

  proto::RunRecords records_;
};

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
                                  HasSubstr("ps (1 server) and ring were equally fast")));
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

TEST_F(CompareReportTest, TheFasterTopologyIsNamedWithItsLead) {
  Add("ps", 2, 1, "aa", 50);
  Add("ps", 2, 2, "aa", 100);
  Add("ring", 2, 0, "aa", 150);
  EXPECT_THAT(JudgeRuns(records_).text,
              AllOf(HasSubstr("speed: with 2 workers ring was 50 % faster than ps (2 servers): "
                              "150.0 against 100.0 samples/s\n"),
                    HasSubstr("On one machine the servers use the workers' cores")));
}

// A ring over NCCL that beat servers of the host was called the faster topology.
TEST_F(CompareReportTest, TopologiesAreComparedOverOneTransportAndTransportsBesideThem) {
  Add("ps", 2, 1, "aa", 80)->set_link("shm");
  Add("ring", 2, 0, "aa", 100)->set_link("shm");
  proto::Run* const nccl = Add("ring", 2, 0, "aa", 200);
  nccl->set_link("nccl");
  EXPECT_THAT(
      JudgeRuns(records_).text,
      AllOf(HasSubstr("ring (shm) was 25 % faster than ps (1 server, shm): 100.0 against 80.0 "
                      "samples/s; both go through the host: a comparison of topologies\n"),
            HasSubstr("ring (nccl) was 2.0 times as fast as ring (shm): 200.0 against 100.0 "
                      "samples/s; NCCL between GPUs against a way through the host: a comparison "
                      "of transports, not of topologies\n")));
  nccl->set_invalid("test mode");
  EXPECT_THAT(JudgeRuns(records_).text, Not(HasSubstr("transports")));
}

TEST_F(CompareReportTest, ALargeLeadIsAFactorAndOneWorkerIsNoRace) {
  Add("ps", 1, 1, "aa", 50);
  Add("ring", 1, 0, "aa", 150);
  EXPECT_THAT(JudgeRuns(records_).text, Not(HasSubstr("speed")));
  Add("ps", 4, 1, "aa", 375);
  Add("ring", 4, 0, "aa", 150);
  EXPECT_THAT(
      JudgeRuns(records_).text,
      HasSubstr("speed: with 4 workers ps (1 server) was 2.5 times as fast as ring: 375.0 "));
}

TEST_F(CompareReportTest, ASmallLeadIsCalledWhatItIs) {
  Add("ps", 2, 1, "aa", 110);
  Add("ring", 2, 0, "aa", 100);
  EXPECT_THAT(JudgeRuns(records_).text, HasSubstr("10 % faster than ring: 110.0 against 100.0 "
                                                  "samples/s (their steps' p10-p90 overlap)\n"));
  records_.mutable_runs(0)->set_samples_per_s(100.5);
  EXPECT_THAT(JudgeRuns(records_).text, HasSubstr("were equally fast"));
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
