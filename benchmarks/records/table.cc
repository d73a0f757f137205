#include "benchmarks/records/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

// The titles' lines as rows of the table; empty cells above short titles.
std::vector<std::vector<std::string>> HeadRows(const std::vector<Column>& columns) {
  std::vector<std::vector<std::string>> titles;
  size_t height = 0;
  for (const Column& column : columns) {
    titles.push_back(absl::StrSplit(column.title, '\n'));
    height = std::max(height, titles.back().size());
  }
  std::vector<std::vector<std::string>> rows(height, std::vector<std::string>(columns.size()));
  for (size_t c = 0; c < columns.size(); ++c) {
    const size_t above = height - titles[c].size();
    for (size_t i = 0; i < titles[c].size(); ++i) rows[above + i][c] = titles[c][i];
  }
  return rows;
}

std::string Pad(const std::string& cell, size_t width, Align align) {
  const std::string space(width - std::min(width, cell.size()), ' ');
  return align == Align::kLeft ? cell + space : space + cell;
}

}  // namespace

std::string FormatTable(const std::vector<Column>& columns,
                        const std::vector<std::vector<std::string>>& rows) {
  const std::vector<std::vector<std::string>> head = HeadRows(columns);
  std::vector<size_t> widths(columns.size());
  for (const auto* part : {&head, &rows}) {
    for (const std::vector<std::string>& row : *part) {
      for (size_t c = 0; c < std::min(row.size(), columns.size()); ++c) {
        widths[c] = std::max(widths[c], row[c].size());
      }
    }
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t c = 0; c < std::min(row.size(), columns.size()); ++c) {
      if (c > 0) line += columns[c].bar_before ? " | " : "  ";
      line += Pad(row[c], widths[c], columns[c].align);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  };
  for (const std::vector<std::string>& row : head) append(row);
  std::vector<std::string> rule;
  for (size_t width : widths) rule.emplace_back(width, '-');
  append(rule);
  for (const std::vector<std::string>& row : rows) append(row);
  return text;
}

std::string Count(int count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string Ms(double ms) { return absl::StrFormat(ms < 100 ? "%.2f" : "%.1f", ms); }

std::string Percent(double share) { return absl::StrFormat("%.0f%%", 100 * share); }

}  // namespace gradsync
