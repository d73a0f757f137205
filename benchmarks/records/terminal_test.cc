#include "benchmarks/records/terminal.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/monotonic_time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(FormatTable({{"name", Align::kLeft}, {"step\nms"}, {"note", Align::kLeft, true}},
                        {{"ring", "12.5", "x"}, {"parameters", "7", ""}}),
            "            step |\n"
            "name          ms | note\n"
            "----------  ---- | ----\n"
            "ring        12.5 | x\n"
            "parameters     7 |\n");
}

TEST(TableTest, ShortRowsEndEarlyAndNoRowsLeaveTheHead) {
  EXPECT_EQ(FormatTable({{"a"}, {"b"}}, {{"1"}}), "a  b\n-  -\n1\n");
  EXPECT_EQ(FormatTable({{"a"}}, {}), "a\n-\n");
}

class ProgressTest : public ::testing::Test {
 protected:
  ProgressOptions Options(bool terminal) {
    ProgressOptions options;
    options.weights = {1, 3};
    options.terminal = terminal;
    options.clock = [this] { return now_; };
    options.write = [this](absl::string_view text) { absl::StrAppend(&text_, text); };
    return options;
  }

  MonotonicTime now_ = MonotonicTime() + absl::Seconds(1000);
  std::string text_;
};

TEST_F(ProgressTest, EachJobGetsAFirstAndALastLineInALog) {
  Progress progress(Options(false));
  progress.Start("ring");
  progress.Step(1, 10);
  now_ += absl::Seconds(10);
  progress.Finish("fast");
  progress.Start("ps");
  now_ += absl::Seconds(31);
  progress.Step(5, 10);
  EXPECT_EQ(text_,
            "[1/2] ring; 0:00 elapsed\n"
            "[1/2] ring: fast (took 0:10)\n"
            "[2/2] ps; 0:10 elapsed, about 0:30 left\n"
            "[2/2] ps: step 5/10; 0:41 elapsed, about 0:25 left\n");
}

TEST_F(ProgressTest, OneLineIsRewrittenOnATerminal) {
  Progress progress(Options(true));
  progress.Start("ring");
  now_ += absl::Seconds(4);
  progress.Step(1, 10);  // start-up, no pace yet
  now_ += absl::Seconds(1);
  progress.Step(5, 10);
  progress.Step(6, 10);  // too soon after the last
  progress.Finish("fast");
  EXPECT_EQ(text_,
            "\r\x1b[K[1/2] ring: starting; 0:00 elapsed"
            "\r\x1b[K[1/2] ring: step 1/10; 0:04 elapsed"
            "\r\x1b[K[1/2] ring: step 5/10; 0:05 elapsed, about 0:35 left"
            "\r\x1b[K[1/2] ring: fast (took 0:05)\n");
}

TEST(FormatClockTest, ShowsHoursOnlyWhenThereAreSome) {
  EXPECT_EQ(FormatClock(absl::Milliseconds(499)), "0:00");
  EXPECT_EQ(FormatClock(absl::Seconds(67)), "1:07");
  EXPECT_EQ(FormatClock(absl::Hours(1) + absl::Seconds(309)), "1:05:09");
}

}  // namespace
}  // namespace gradsync
