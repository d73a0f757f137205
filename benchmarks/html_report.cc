#include "benchmarks/html_report.h"

#include <poll.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr absl::Duration kLimit = absl::Minutes(2);

}  // namespace

absl::Status WriteHtmlReport(const std::string& tool, const std::string& json,
                             const std::string& html) {
  std::string last_words;
  GS_ASSIGN_OR_RETURN(std::unique_ptr<Subprocess> process,
                      Subprocess::Start({kPython, tool, json, absl::StrCat("--out=", html)},
                                        [&last_words](absl::string_view line, bool is_stderr) {
                                          if (is_stderr) last_words = std::string(line);
                                        }));
  const absl::Time deadline = absl::Now() + kLimit;
  while (!process->exit_status().has_value()) {
    pollfd fds[] = {{process->stdout_fd(), POLLIN, 0}, {process->stderr_fd(), POLLIN, 0}};
    poll(fds, 2, /*timeout=*/20);
    process->Poll();
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(tool, ": expected to end within ", absl::FormatDuration(kLimit)));
    }
  }
  if (process->exit_status()->ok()) return absl::OkStatus();
  if (last_words.empty()) {
    last_words = absl::StrCat(tool, " ended with ", process->exit_status()->ToString());
  }
  return absl::FailedPreconditionError(absl::StripPrefix(last_words, "report: "));
}

}  // namespace gradsync
