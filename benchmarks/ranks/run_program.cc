#include "benchmarks/ranks/run_program.h"

#include <poll.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "tools/subprocess.h"

namespace gradsync {

absl::Status RunProgram(const std::vector<std::string>& argv, absl::Duration limit,
                        std::string* output, const std::atomic<int>* interrupt) {
  std::string last_words;
  GS_ASSIGN_OR_RETURN(
      std::unique_ptr<Subprocess> process,
      Subprocess::Start(argv, [&last_words, output](absl::string_view line, bool is_stderr) {
        if (is_stderr) last_words = std::string(line);
        if (!is_stderr && output != nullptr) absl::StrAppend(output, line, "\n");
      }));
  const Deadline deadline = Deadline::In(limit);
  while (!process->exit_status().has_value()) {
    pollfd fds[] = {{process->stdout_fd(), POLLIN, 0}, {process->stderr_fd(), POLLIN, 0}};
    poll(fds, 2, /*timeout=*/20);
    process->Poll();
    if (interrupt != nullptr && *interrupt != 0) return absl::CancelledError("interrupted");
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat(argv[0], ": expected to end within ", absl::FormatDuration(limit)));
    }
  }
  if (process->exit_status()->ok()) return absl::OkStatus();
  if (last_words.empty()) {
    last_words = absl::StrCat(argv[0], " ended with ", process->exit_status()->ToString());
  }
  return absl::FailedPreconditionError(last_words);
}

}  // namespace gradsync
