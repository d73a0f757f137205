#include "benchmarks/comparison/run_parts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ComparisonPart Part() {
  ComparisonPart part;
  part.options.rounds = 2;
  part.options.steps = 9;
  part.options.threads = 1;
  Configuration ring;
  ring.job.spec.topology = Topology::kRing;
  ring.job.workers = 4;
  ring.batch_size = 10;
  part.configurations = {ring};
  return part;
}

TEST(RunPartsTest, AJobIsExpectedToTakeWhatIsPredictedOrElseItsSamplesInTurns) {
  // 1.5 s, and ten steps of ten samples in two turns.
  EXPECT_THAT(ExpectedSeconds({Part()}, {}, /*cores=*/2), ElementsAre(DoubleEq(2), DoubleEq(2)));
  proto::RunRecords records;
  proto::Run& predicted = *records.add_predictions();
  predicted.set_topology("ring");
  predicted.set_workers(4);
  predicted.set_step_ms_p50(100);
  EXPECT_THAT(ExpectedSeconds({Part()}, records.predictions(), /*cores=*/2),
              ElementsAre(DoubleEq(2.5), DoubleEq(2.5)));
}

TEST(RunPartsTest, AJobThatFailsIsSaidOnceAndLeftOutOfFurtherRounds) {
  JobPrograms programs;
  programs.rank_binary = "/bin/false";
  std::string shown;
  ProgressOptions progress;
  progress.weights = {1, 1};
  progress.clock = MonotonicTime::Now;
  progress.write = [&shown](absl::string_view text) { shown.append(text.data(), text.size()); };
  std::vector<std::string> errors;
  proto::RunRecords records;
  const int exit_code = RunParts(
      {Part()}, programs, {}, progress, [&errors](absl::string_view e) { errors.emplace_back(e); },
      &records);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(errors, ElementsAre(HasSubstr("ring, 4 workers: ")));
  EXPECT_THAT(shown, HasSubstr("left out, since it failed"));
  EXPECT_EQ(records.runs_size(), 0);
}

}  // namespace
}  // namespace gradsync
