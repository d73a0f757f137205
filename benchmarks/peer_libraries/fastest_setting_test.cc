// Contestants that are shell scripts.

#include "benchmarks/peer_libraries/fastest_setting.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The setting says how long a step takes, in milliseconds; "broken" does not start, "tired" fails
// at its turn.
constexpr char kScript[] = R"(
  for argument; do
    case "$argument" in --settings=*) setting=${argument#*=};; esac
  done
  if [ "$setting" = broken ]; then echo cannot run: it is broken; exit; fi
  echo "ready torch 9|cpu|||$setting"
  while read steps; do
    if [ "$setting" = tired ]; then echo cannot run: it is tired; exit; fi
    echo 0 $((setting * 1000 * steps))
  done)";

struct Tried {
  absl::Status status;
  std::string settings;  // of the winner
  std::vector<std::string> lines;
};

Tried Try(const std::string& first, const std::vector<std::string>& others) {
  PeerTrainingOptions options;
  options.ranks = 1;
  options.environment = [](absl::string_view) { return absl::optional<std::string>(); };
  options.python = "/bin/sh";
  options.script = testing::TempDir() + "/script.sh";
  std::ofstream(options.script) << kScript;
  Tried tried;
  const auto winner =
      StartFastest(options, {"pytorch", first, "auto", others},
                   [&tried](absl::string_view line) { tried.lines.emplace_back(line); });
  tried.status = winner.status();
  if (winner.ok()) tried.settings = winner->run().settings();
  return tried;
}

TEST(FastestSettingTest, TheFastestIsKeptAndEveryComparisonIsTold) {
  const Tried tried = Try("30", {"20", "25"});
  EXPECT_EQ(tried.settings, "torch 9: 20 (fastest of 3)");
  EXPECT_THAT(tried.lines,
              ElementsAre("trying torch 9: 20: 20.0 ms, beside 30.0 ms with torch 9: 30",
                          "trying torch 9: 25: 25.0 ms, beside 20.0 ms with torch 9: 20"));
}

TEST(FastestSettingTest, OneSettingIsTakenAsItIs) {
  const Tried tried = Try("30", {});
  EXPECT_EQ(tried.settings, "torch 9: 30");
  EXPECT_THAT(tried.lines, testing::IsEmpty());
}

TEST(FastestSettingTest, SettingsThatCannotRunAreOut) {
  EXPECT_EQ(Try("broken", {"20"}).settings, "torch 9: 20 (fastest of 2)");
  EXPECT_EQ(Try("20", {"broken"}).settings, "torch 9: 20 (fastest of 2)");
  EXPECT_EQ(Try("tired", {"20"}).settings, "torch 9: 20 (fastest of 2)");
  const Tried tried = Try("20", {"tired"});
  EXPECT_EQ(tried.settings, "torch 9: 20 (fastest of 2)");
  EXPECT_THAT(tried.lines, ElementsAre(AllOf(HasSubstr("tired"), HasSubstr("it is tired"))));
}

TEST(FastestSettingTest, WhenNoneRunsTheErrorIsThatOfTheFirst) {
  EXPECT_EQ(Try("broken", {"broken"}).status, absl::UnavailableError("cannot run: it is broken"));
}

}  // namespace
}  // namespace gradsync
