#include "benchmarks/records/terminal.h"

#include <algorithm>
#include <utility>

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

constexpr absl::Duration kRewriteInterval = absl::Milliseconds(100);
// Long jobs show signs of life in log files too.
constexpr absl::Duration kLogInterval = absl::Seconds(30);
// Of the first job: before, its start-up would pass for the pace of its steps.
constexpr double kPartForEstimate = 0.2;
constexpr absl::string_view kRewrite = "\r\x1b[K";

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

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)), begin_(options_.clock()) {
  for (double weight : options_.weights) total_weight_ += weight;
}

void Progress::Start(std::string label) {
  ++job_;
  label_ = std::move(label);
  job_part_ = 0;
  job_begin_ = options_.clock();
  WriteLine(options_.terminal ? absl::StrCat(Head(), ": starting; ", Times())
                              : absl::StrCat(Head(), "; ", Times()),
            !options_.terminal);
}

void Progress::Step(int64_t step, int64_t steps) {
  job_part_ = static_cast<double>(step) / static_cast<double>(steps);
  const absl::Duration interval = options_.terminal ? kRewriteInterval : kLogInterval;
  if (options_.clock() - last_write_ < interval) return;
  WriteLine(absl::StrCat(Head(), ": step ", step, "/", steps, "; ", Times()), !options_.terminal);
}

void Progress::Finish(absl::string_view result) {
  WriteLine(absl::StrCat(Head(), ": ", result, " (took ",
                         FormatClock(options_.clock() - job_begin_), ")"),
            true);
  done_weight_ += options_.weights[job_ - 1];
}

std::string Progress::Head() const {
  return absl::StrCat("[", job_, "/", options_.weights.size(), "] ", label_);
}

std::string Progress::Times() const {
  const absl::Duration elapsed = options_.clock() - begin_;
  const double done = done_weight_ + job_part_ * options_.weights[job_ - 1];
  std::string text = absl::StrCat(FormatClock(elapsed), " elapsed");
  if (done_weight_ > 0 || job_part_ >= kPartForEstimate) {
    absl::StrAppend(&text, ", about ", FormatClock(elapsed * ((total_weight_ - done) / done)),
                    " left");
  }
  return text;
}

void Progress::WriteLine(const std::string& line, bool stays) {
  last_write_ = options_.clock();
  options_.write(absl::StrCat(options_.terminal ? kRewrite : "", line, stays ? "\n" : ""));
}

std::string FormatClock(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  if (seconds < 3600) return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace gradsync
