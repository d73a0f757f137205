#include "benchmarks/records/table.h"

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

}  // namespace
}  // namespace gradsync
