// The output is made by the formats in the sources of nccl-tests 2.19.6 (src/util.cu); no GPU was
// at hand to run it.

#include "benchmarks/exchange/exchange_job.h"

#include <sys/stat.h>

#include <atomic>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

std::string Row(int64_t bytes, double out_us, double in_us, const std::string& wrong) {
  const auto half = [&](double us) {
    return absl::StrFormat("  %7.2f  %6.2f  %6.2f  %6s", us, bytes / us * 1e-3, bytes / us * 1e-3,
                           wrong);
  };
  return absl::StrCat(
      absl::StrFormat("%12d  %12d  %8s  %6s  %6s", bytes, bytes / 4, "float", "sum", "    -1"),
      half(out_us), half(in_us), "\n");
}

std::string Output(const std::string& rows) {
  return absl::StrCat(
      "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n"
      "# Collective test starting: all_reduce_perf\n"
      "# nThread 1 nGpus 2 minBytes 4194304 maxBytes 4194304 step: 1048576(bytes) warmup iters: "
      "5\n#\n"
      "# Using devices\n#  Rank  0 Group  0 Pid   1234 on node-1 device  0 [0000:01:00] NVIDIA "
      "H200\n#\n"
      "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n",
      rows, "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.5\n#\n");
}

SyncBenchCase Case() {
  SyncBenchCase bench_case;
  bench_case.job.spec.topology = Topology::kRing;
  bench_case.job.spec.link = Link::kNccl;
  bench_case.job.workers = 2;
  bench_case.device = "cuda";
  bench_case.exchange.world_size = 2;
  bench_case.exchange.iterations = 20;
  bench_case.exchange.warmup = 5;
  return bench_case;
}

TEST(NcclTestsTest, TheFiguresInPlaceAreTaken) {
  const auto result = ParseNcclTests(Output(Row(4194304, 120.5, 100, "0")));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->bytes(), 4194304);
  EXPECT_EQ(result->time_us_p50(), 100);
  EXPECT_NEAR(result->algbw_gb_per_s(), 41.94, 1e-9);
  EXPECT_NEAR(result->busbw_gb_per_s().number_value(), 41.94, 1e-9);
  EXPECT_EQ(result->wrong(), 0);
  EXPECT_EQ(result->settings(), "nccl-tests 2.19.6");
  EXPECT_EQ(result->nccl_version(), "2.28.9");
  EXPECT_EQ(ParseNcclTests(Output(Row(4194304, 1, 1, "3")))->wrong(), 3);
}

TEST(NcclTestsTest, WhatIsNoResultIsAnErrorAndNotANumber) {
  for (const std::string& rows :
       {std::string(), Row(4096, 1, 1, "N/A"), Row(4096, 1, 1, "0") + Row(8192, 1, 1, "0"),
        std::string("4096 1024 float sum -1 1 2 3 0\n"), Row(4096, 1, 0, "0")}) {
    EXPECT_EQ(ParseNcclTests(Output(rows)).status().code(), absl::StatusCode::kDataLoss) << rows;
  }
}

TEST(NcclTestsTest, ItRunsTheSameCaseAndStandsBesideIt) {
  const std::string program = testing::TempDir() + "/all_reduce_perf";
  std::ofstream(program) << "#!/bin/sh\necho \"$@\" >" << program << ".args\ncat <<E\n"
                         << Output(Row(4194304, 300, 200, "0")) << "E\n";
  chmod(program.c_str(), 0755);
  proto::Run measured;
  measured.set_topology("ring");
  measured.set_bytes(4194304);
  measured.set_time_us_p50(100);
  measured.set_workers(2);
  measured.set_device("NVIDIA H200");
  const auto run = MeasureNcclTests(program, Case(), nullptr, &measured);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->library(), "nccl_tests");
  EXPECT_EQ(run->time_us_p50(), 200);
  EXPECT_EQ(run->device(), "NVIDIA H200");
  EXPECT_EQ(measured.peer_ratio(), 2);
  EXPECT_EQ(measured.peer_ratios(0).peer(), "nccl_tests");
  std::string arguments;
  std::ifstream file(program + ".args");
  std::getline(file, arguments);
  EXPECT_EQ(arguments, "-b 4194304 -e 4194304 -g 2 -n 20 -w 5 -d float -o sum -c 1 -z 1");
}

TEST(NcclTestsTest, WrongElementsCountThoughItFailsThen) {
  const std::string program = testing::TempDir() + "/wrong_all_reduce_perf";
  std::ofstream(program) << "#!/bin/sh\ncat <<E\n"
                         << Output(Row(4194304, 300, 200, "3")) << "E\nexit 1\n";
  chmod(program.c_str(), 0755);
  proto::Run measured;
  measured.set_bytes(4194304);
  const auto run = MeasureNcclTests(program, Case(), nullptr, &measured);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->wrong(), 3);
}

TEST(NcclTestsTest, AnInterruptEndsIt) {
  const std::string program = testing::TempDir() + "/endless_all_reduce_perf";
  std::ofstream(program) << "#!/bin/sh\nexec tail -f /dev/null\n";
  chmod(program.c_str(), 0755);
  const std::atomic<int> interrupt{2};
  proto::Run measured;
  EXPECT_TRUE(absl::IsCancelled(MeasureNcclTests(program, Case(), &interrupt, &measured).status()));
}

TEST(NcclTestsTest, WhereItIsMissingOneLineSaysHowToGetIt) {
  proto::Run measured;
  const absl::Status status =
      MeasureNcclTests("/nowhere/all_reduce_perf", Case(), nullptr, &measured).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tools/setup --cuda --peers"));
  EXPECT_EQ(measured.peer_ratios_size(), 0);
}

TEST(NcclTestsTest, OnlyAnAllReduceOverNcclIsCompared) {
  EXPECT_TRUE(ComparesWithNcclTests(Case()));
  SyncBenchCase other = Case();
  other.job.spec.update = UpdateSite::kOwner;
  EXPECT_FALSE(ComparesWithNcclTests(other));
  other = Case();
  other.job.spec.link = Link::kShm;
  EXPECT_FALSE(ComparesWithNcclTests(other));
  other = Case();
  other.device = "cuda:1";
  EXPECT_FALSE(ComparesWithNcclTests(other));
}

}  // namespace
}  // namespace gradsync
