#include "worker/seeing.h"

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/trainer.h"

namespace gradsync {
namespace {

StepReport Report(int64_t step, int64_t steps) {
  StepReport report;
  report.step = step;
  report.steps = steps;
  report.loss = 1.23456;
  report.times.total = absl::Milliseconds(81);
  report.times.data = absl::Microseconds(140);
  report.times.exposed = absl::Microseconds(3200);
  return report;
}

ProgressOptions Every(int64_t every) {
  ProgressOptions options;
  options.every = every;
  options.samples_per_step = 32;
  options.steps_per_epoch = 390;
  return options;
}

TEST(ProgressTest, SaysWhereTheJobIsAndHowLongItWillTake) {
  const MonotonicTime begin;
  Progress progress(Every(10), begin);
  EXPECT_EQ(progress.Line(Report(1, 1950), begin + absl::Milliseconds(100)),
            "step 1/1950 epoch 1/5 loss 1.2346 320 samples/s data 0.1 exposed 3.2 step 81.0 ms, "
            "3 min 15 s left");
  EXPECT_EQ(progress.Line(Report(2, 1950), begin + absl::Milliseconds(200)), "");
  EXPECT_EQ(progress.Line(Report(400, 1950), begin + absl::Seconds(40)),
            "step 400/1950 epoch 2/5 loss 1.2346 320 samples/s data 0.1 exposed 3.2 step 81.0 ms, "
            "2 min 35 s left");
}

TEST(ProgressTest, TheLastStepHasALineAndNothingIsLeft) {
  const MonotonicTime begin;
  Progress progress(Every(1000), begin);
  progress.Line(Report(1, 390), begin + absl::Milliseconds(100));
  EXPECT_EQ(progress.Line(Report(390, 390), begin + absl::Seconds(39)),
            "step 390/390 epoch 1/1 loss 1.2346 320 samples/s data 0.1 exposed 3.2 step 81.0 ms");
}

TEST(ProgressTest, AJobThatWasResumedIsTimedFromThereOn) {
  const MonotonicTime begin;
  Progress progress(Every(1000), begin);
  EXPECT_EQ(progress.Line(Report(101, 200), begin + absl::Milliseconds(100)),
            "step 101/200 epoch 1/1 loss 1.2346 320 samples/s data 0.1 exposed 3.2 step 81.0 ms, "
            "10 s left");
}

TEST(ProgressTest, TheAccuracyIsOfTheEpochSoFar) {
  Progress progress(Every(1), MonotonicTime());
  const auto line = [&progress](int64_t step, int64_t epoch, int64_t correct) {
    StepReport report = Report(step, 3);
    report.epoch = epoch;
    report.samples = 32;
    report.correct = correct;
    return progress.Line(report, MonotonicTime() + absl::Seconds(step));
  };
  EXPECT_THAT(line(1, 1, 8), testing::HasSubstr(" accuracy 25.0 %"));
  EXPECT_THAT(line(2, 1, 24), testing::HasSubstr(" accuracy 50.0 %"));
  EXPECT_THAT(line(3, 2, 32), testing::HasSubstr(" accuracy 100.0 %"));
}

TEST(ProgressTest, NoLinesWhenNoneAreWanted) {
  Progress progress(Every(0), MonotonicTime());
  EXPECT_EQ(progress.Line(Report(1, 1), MonotonicTime()), "");
}

TEST(ProgressTest, TimeLeftIsSaidInTwoUnitsAtMost) {
  EXPECT_EQ(FormatTimeLeft(absl::Milliseconds(400)), "0 s");
  EXPECT_EQ(FormatTimeLeft(absl::Milliseconds(59600)), "1 min 0 s");
  EXPECT_EQ(FormatTimeLeft(absl::Minutes(125)), "2 h 5 min");
}

}  // namespace
}  // namespace gradsync
