// compare.json as a page to look at.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_HTML_REPORT_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_HTML_REPORT_H_

#include <string>

#include "absl/status/status.h"

namespace gradsync {

// Makes `html` of the records in `json` by running `tool`, which is //tools/report, under the
// system's Python, whichever other is first on PATH: that one sees the system's matplotlib. Blocks
// for some seconds, at most two minutes.
// Errors: FAILED_PRECONDITION in the tool's own words, such as which module is missing; NOT_FOUND
// without a system's Python; DEADLINE_EXCEEDED.
absl::Status WriteHtmlReport(const std::string& tool, const std::string& json,
                             const std::string& html);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_HTML_REPORT_H_
