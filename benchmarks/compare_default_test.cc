// Runs `compare` as a newcomer does, without flags that say what to compare; with one round, which
// takes less than a minute on two idle cores.

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "benchmarks/records/proto_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr char kCompare[] = "benchmarks/compare";

class DefaultComparisonTest : public ::testing::Test {
 protected:
  DefaultComparisonTest() : folder_(::testing::TempDir() + "/default_test-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~DefaultComparisonTest() override { std::filesystem::remove_all(folder_); }

  // `bandwidths` is that flag's value.
  std::vector<std::string> Default(const std::string& bandwidths) {
    return {kCompare, "--rounds=1", "--bandwidth=" + bandwidths, "--out=" + folder_};
  }

  proto::RunRecords ReadRecords() {
    proto::RunRecords records;
    EXPECT_EQ(ReadJson(folder_ + "/compare.json", &records), absl::OkStatus());
    return records;
  }

  static std::map<std::string, int> RunsByBandwidth(const proto::RunRecords& records) {
    std::map<std::string, int> runs;
    for (const proto::Run& run : records.runs()) {
      EXPECT_EQ(run.model(), "resnet18");
      EXPECT_EQ(run.workers(), run.bandwidth().empty() ? 2 : 3);
      ++runs[run.bandwidth()];
    }
    return runs;
  }

  std::string folder_;
};

TEST_F(DefaultComparisonTest, PutsTheSameJobOnThisMachineAndOnEmulatedHosts) {
  const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
  if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) GTEST_SKIP() << possible;
  TestProgram compare(Default("1gbit"));
  EXPECT_TRUE(compare.Finish(absl::Seconds(280)).ok()) << absl::StrJoin(compare.err(), "\n");
  const proto::RunRecords records = ReadRecords();
  EXPECT_THAT(RunsByBandwidth(records), ElementsAre(Pair("", 4), Pair("1gbit", 3)));
  EXPECT_EQ(records.no_network(), "");
  EXPECT_THAT(compare.out(),
              AllOf(Contains(StartsWith("first on this machine alone: resnet18, ")),
                    Contains(StartsWith("then on emulated hosts: resnet18, ")),
                    Contains(StartsWith("BANDWIDTH: samples per second of 3 workers")),
                    Contains(ContainsRegex("^    1gbit [|] +[0-9.]+( INVALID)? +[0-9.]+ [|] ")),
                    Contains("  bits: identical in all 4 runs with 2 workers"),
                    Contains("  bits: identical in all 3 runs with 3 workers")));
}

// In a user namespace that may have no network namespaces.
TEST_F(DefaultComparisonTest, WhereNamespacesAreNotAllowedItSaysWhyNotAndPredicts) {
  const std::vector<std::string> forbidden = {
      "/usr/bin/unshare",
      "-Ur",
      "/bin/sh",
      "-c",
      "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"",
      "sh"};
  std::vector<std::string> argv = forbidden;
  argv.push_back("/bin/true");
  TestProgram possible(argv);
  if (!possible.Finish().ok()) GTEST_SKIP() << "network namespaces cannot be forbidden here";
  argv = forbidden;
  for (const std::string& argument : Default("100mbit,400mbit")) argv.push_back(argument);
  TestProgram compare(argv);
  EXPECT_TRUE(compare.Finish(absl::Seconds(280)).ok()) << absl::StrJoin(compare.err(), "\n");
  EXPECT_THAT(compare.err(), ElementsAre());
  EXPECT_THAT(
      compare.out(),
      AllOf(
          Contains(StartsWith("no emulated hosts, so only predictions of them: cannot make network "
                              "namespaces (")),
          Contains(StartsWith("BANDWIDTH: samples per second of 3 workers")),
          Contains(AllOf(StartsWith("  predicted, not measured: at 100mbit with 3 workers "),
                         HasSubstr("3 servers beside the workers"),
                         HasSubstr("3 servers on hosts of their own")))));
  const proto::RunRecords records = ReadRecords();
  EXPECT_THAT(RunsByBandwidth(records), ElementsAre(Pair("", 4)));
  EXPECT_THAT(records.no_network(), StartsWith("cannot make network namespaces ("));
  EXPECT_GT(records.predictions_size(), 0);
  // Flags that ask for a network are refused there, as bad input.
  argv = forbidden;
  argv.insert(argv.end(), {kCompare, "--model=mlp", "--bandwidth=400mbit", "--out=" + folder_});
  TestProgram asked_for(argv);
  EXPECT_EQ(asked_for.Finish().code, 2);
  EXPECT_THAT(asked_for.err(), ElementsAre(HasSubstr("cannot make network namespaces (")));
}

}  // namespace
}  // namespace gradsync
