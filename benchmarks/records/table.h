// Text tables for terminals, and what stands in their cells.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_TABLE_H_
#define GRADSYNC_BENCHMARKS_RECORDS_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;  // may have several lines; they stand at the bottom of the head
  Align align = Align::kRight;
  bool bar_before = false;  // a vertical bar on the left
};

// The table with a head, a rule and one line per row, two spaces between columns, as wide as its
// widest cells; widths count bytes, so cells should be ASCII. Rows shorter than `columns` end
// early. Lines have no spaces at their ends, and each ends in a newline.
std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows);

// "1 server", "2 servers".
std::string Count(int count, absl::string_view noun);

// "3.14", "314.2"; "42%" of 0.42.
std::string Ms(double ms);
std::string Percent(double share);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_TABLE_H_
