// What programs print on terminals: tables, and how far a sweep of jobs is.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_TERMINAL_H_
#define GRADSYNC_BENCHMARKS_RECORDS_TERMINAL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

// Text tables for terminals, and what stands in their cells.

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

// Says how far a sweep of jobs is.
struct ProgressOptions {
  // How long each job takes, in any one unit: what is left is estimated from what is done.
  std::vector<double> weights;
  // On a terminal one line is rewritten in place; otherwise each job gets a line when it starts and
  // one when it ends.
  bool terminal = false;
  std::function<MonotonicTime()> clock;
  std::function<void(absl::string_view text)> write;  // gets text with its line ends
};

// Not thread-safe, does not block.
class Progress {
 public:
  explicit Progress(ProgressOptions options);

  // The next job begins. `label` names it.
  void Start(std::string label);

  // The job has done `step` of `steps`.
  void Step(int64_t step, int64_t steps);

  // The job has ended; `result` is a few words about it.
  void Finish(absl::string_view result);

 private:
  std::string Head() const;   // "[2/6] ring, 2 workers"
  std::string Times() const;  // "0:12 elapsed, about 0:31 left"
  void WriteLine(const std::string& line, bool stays);

  const ProgressOptions options_;
  const MonotonicTime begin_;
  MonotonicTime job_begin_;
  MonotonicTime last_write_;
  double total_weight_ = 0;
  double done_weight_ = 0;  // of jobs that have ended
  double job_part_ = 0;     // of the running job
  size_t job_ = 0;          // from 1
  std::string label_;
};

// "1:05:09", "12:03", "0:07".
std::string FormatClock(absl::Duration duration);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_TERMINAL_H_
