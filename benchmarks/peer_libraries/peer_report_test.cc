#include "benchmarks/peer_libraries/peer_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

ContestantResult Result(const std::string& name, PeerRole role, const std::vector<double>& times) {
  ContestantResult result;
  result.contestant.name = name;
  result.contestant.library = name;
  result.contestant.role = role;
  result.run.set_workers(4);
  result.run.set_bytes(1e6);
  for (const double time : times) result.run.add_round_us(time);
  return result;
}

std::vector<ContestantResult> Results() {
  std::vector<ContestantResult> results = {Result("ring/shm", PeerRole::kOurs, {100, 200, 100}),
                                           Result("gloo", PeerRole::kLibrary, {300, 1000, 500}),
                                           Result("mpich", PeerRole::kLibrary, {400, 400, 400}),
                                           Result("memcpy", PeerRole::kCeiling, {50, 50, 50}),
                                           Result("impi", PeerRole::kLibrary, {})};
  results[4].run.set_failure("not installed; tools/setup --peers installs it");
  return results;
}

TEST(PeerReportTest, RatiosAreByRoundAndTheBestPeerIsALibraryNotACeiling) {
  const std::vector<proto::Run> records = PeerRecords(Results());
  ASSERT_EQ(records.size(), 5u);
  const proto::Run& ours = records[0];
  ASSERT_EQ(ours.peer_ratios_size(), 4);
  EXPECT_EQ(ours.peer_ratios(0).peer(), "gloo");
  EXPECT_DOUBLE_EQ(ours.peer_ratios(0).p50(), 5);  // of 3, 5 and 5
  EXPECT_DOUBLE_EQ(ours.peer_ratios(0).low(), 3);
  EXPECT_EQ(ours.peer_ratios(3).peer(), "best peer");
  EXPECT_DOUBLE_EQ(ours.peer_ratio(), 3);  // of 300/100, 400/200 and 400/100
  EXPECT_DOUBLE_EQ(ours.peer_ratios(3).low(), 2);
  EXPECT_DOUBLE_EQ(ours.peer_ratios(3).high(), 4);
}

TEST(PeerReportTest, RatesAreThoseOfTheMedianRound) {
  const std::vector<proto::Run> records = PeerRecords(Results());
  EXPECT_DOUBLE_EQ(records[0].time_us_p50(), 100);
  EXPECT_DOUBLE_EQ(records[0].algbw_gb_per_s(), 10);
  EXPECT_DOUBLE_EQ(records[0].busbw_gb_per_s().number_value(), 15);  // 2 * 3 / 4 at 4 ranks
  EXPECT_EQ(records[3].busbw_gb_per_s().kind_case(), google::protobuf::Value::kNullValue);
  EXPECT_EQ(records[0].round_us_size(), 3);
}

TEST(PeerReportTest, APeerThatCannotRunHasARowThatSaysWhy) {
  const std::vector<ContestantResult> results = Results();
  const std::vector<proto::Run> records = PeerRecords(results);
  EXPECT_THAT(records[4].failure(), HasSubstr("tools/setup --peers"));
  const std::string table = PeerTable(results, records);
  EXPECT_THAT(table, HasSubstr("impi: not installed; tools/setup --peers installs it\n"));
  EXPECT_THAT(table, HasSubstr("5.00 (3.00-5.00)"));
  EXPECT_THAT(table, HasSubstr("3.00 (2.00-4.00)"));
  EXPECT_THAT(table, HasSubstr("best peer"));
}

TEST(PeerReportTest, TheBestPeerHasTimesAndSaysWhoItWas) {
  const std::vector<ContestantResult> results = Results();
  const std::string table = PeerTable(results, PeerRecords(results));
  EXPECT_THAT(table, ContainsRegex("best peer +0.400 +0.320 +0.400 "));
  EXPECT_THAT(table, HasSubstr("best peer: the fastest of each round, gloo in 1, mpich in 2 of 3 "
                               "rounds\n"));
}

// A median between two clusters was shown as if the library took that long.
TEST(PeerReportTest, TimesInTwoClustersAreMarkedWithBothMedians) {
  std::vector<ContestantResult> results = {
      Result("ring/shm", PeerRole::kOurs, {10, 10, 10, 10, 10}),
      Result("impi", PeerRole::kLibrary, {20000, 21000, 90000, 91000, 22000})};
  results[1].contestant.note = "spins";
  const std::string table = PeerTable(results, PeerRecords(results));
  EXPECT_THAT(table, ContainsRegex("impi +~22.00 "));
  EXPECT_THAT(table, HasSubstr("impi: two clusters, with medians of 21.00 ms (3 rounds) and "
                               "90.50 ms (2): p50 and ratios stand for neither\nimpi: spins\n"));
  EXPECT_THAT(table, Not(HasSubstr("ring/shm: two clusters")));
}

TEST(PeerReportTest, TheSummaryHasAColumnForEachCaseAndTheBestPeerLast) {
  std::vector<ContestantResult> results = Results();
  results[0].contestant.library = "gradsync";
  results[0].run.set_topology("ring");  // as the ranks said
  results[0].run.set_link("shm");
  std::vector<ContestantResult> later = results;
  later[4] = Result("impi", PeerRole::kLibrary, {100, 100, 100});
  for (ContestantResult& result : later) result.run.set_bytes(4096);
  const std::string summary = PeerSummary({PeerRecords(results), PeerRecords(later)});
  EXPECT_THAT(summary, HasSubstr("time over that of the first row, in brackets smallest to largest "
                                 "of 3 rounds, which hold the true median 75 times in 100\n"));
  EXPECT_THAT(summary, ContainsRegex("1MB +4KiB\n +4 ranks +4 ranks\n"));
  EXPECT_THAT(summary, ContainsRegex("ring/shm, ms +0.100 +0.100\n"));
  EXPECT_THAT(summary, ContainsRegex("gloo +5.00 \\(3.00-5.00\\) +5.00 \\(3.00-5.00\\)\n"));
  EXPECT_THAT(summary, ContainsRegex("impi +1.00 \\(0.50-1.00\\)\n"
                                     "best peer +3.00 \\(2.00-4.00\\) +1.00 \\(0.50-1.00\\)\n$"));
  results[0].run.set_failure("no memory");
  EXPECT_EQ(PeerSummary({PeerRecords(results)}), "");
}

TEST(PeerReportTest, WithoutAnyLibraryThereIsNoBestPeer) {
  std::vector<ContestantResult> results = Results();
  results.erase(results.begin() + 1, results.begin() + 3);
  const std::vector<proto::Run> records = PeerRecords(results);
  EXPECT_EQ(records[0].peer_ratio(), 0);
  EXPECT_THAT(PeerTable(results, records), Not(HasSubstr("best peer")));
}

}  // namespace
}  // namespace gradsync
