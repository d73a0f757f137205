// --help of the programs themselves: every flag stands under the topic that a table gives it, and
// no table names a flag that none of its programs has.

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/options/command_line.h"
#include "core/program/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/test_program.h"
#include "worker/effective_flags.h"

namespace gradsync {
namespace {

using ::testing::IsEmpty;

// A heading, with its colon, and the flags that stand under it.
using Section = std::pair<std::string, std::vector<std::string>>;

std::vector<Section> HelpOf(const std::string& path) {
  TestProgram program({path, "--help"});
  EXPECT_TRUE(program.Finish().ok()) << path << "\n" << absl::StrJoin(program.err(), "\n");
  std::vector<Section> sections;
  for (const std::string& line : program.out()) {
    if (absl::StartsWith(line, "  --") && !sections.empty()) {
      sections.back().second.push_back(line.substr(4, line.find_first_of(" ,", 4) - 4));
    } else if (!line.empty() && line[0] != ' ') {
      sections.emplace_back(line, std::vector<std::string>());
    }
  }
  // Lines of the usage text head nothing.
  const auto heads_nothing = [](const Section& section) { return section.second.empty(); };
  sections.erase(std::remove_if(sections.begin(), sections.end(), heads_nothing), sections.end());
  return sections;
}

// What a program with these flags shows.
std::vector<Section> Select(const std::vector<FlagTopic>& topics,
                            const std::set<std::string>& flags) {
  std::vector<Section> sections;
  for (const FlagTopic& topic : topics) {
    std::vector<std::string> selected;
    for (const std::string& name : topic.flags) {
      if (flags.count(name) > 0) selected.push_back(name);
    }
    if (!selected.empty()) sections.emplace_back(absl::StrCat(topic.title, ":"), selected);
  }
  return sections;
}

void ExpectHelpByTopic(const std::vector<std::string>& programs,
                       const std::vector<FlagTopic>& topics) {
  std::set<std::string> unused;
  for (const FlagTopic& topic : topics) {
    for (const std::string& name : topic.flags) {
      EXPECT_TRUE(unused.insert(name).second) << name << " stands in the table twice";
    }
  }
  for (const std::string& program : programs) {
    const std::vector<Section> help = HelpOf(program);
    std::set<std::string> flags;
    for (const Section& section : help) flags.insert(section.second.begin(), section.second.end());
    // A flag that the table lacks stands under "Other:".
    EXPECT_EQ(help, Select(topics, flags)) << program;
    for (const std::string& name : flags) unused.erase(name);
  }
  EXPECT_THAT(unused, IsEmpty()) << "no program has such a flag";
}

TEST(HelpTest, EveryFlagOfABenchmarkHasItsTopic) {
  ExpectHelpByTopic(
      {"benchmarks/compare", "benchmarks/data_parallel", "benchmarks/many_workers",
       "benchmarks/peers", "benchmarks/predict", "benchmarks/sync_bench", "benchmarks/train_bench"},
      BenchmarkTopics());
}

TEST(HelpTest, EveryFlagOfAWorkerHasItsTopic) {
  ExpectHelpByTopic({"worker/worker"}, WorkerTopics());
}

}  // namespace
}  // namespace gradsync
