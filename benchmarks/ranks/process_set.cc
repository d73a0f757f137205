#include "benchmarks/ranks/process_set.h"

#include <poll.h>

#include <csignal>
#include <deque>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(3);
constexpr size_t kLastLines = 3;
constexpr int kPollMilliseconds = 20;  // output ends the wait; the end of a process alone does not

class ProcessSet {
 public:
  absl::Status Start(const std::vector<std::vector<std::string>>& commands) {
    last_lines_.resize(commands.size());
    for (size_t i = 0; i < commands.size(); ++i) {
      std::deque<std::string>* const lines = &last_lines_[i];
      GS_ASSIGN_OR_RETURN(auto process,
                          Subprocess::Start(commands[i], [lines](absl::string_view line, bool) {
                            if (absl::StripAsciiWhitespace(line).empty()) return;
                            lines->push_back(std::string(absl::StripAsciiWhitespace(line)));
                            if (lines->size() > kLastLines) lines->pop_front();
                          }));
      processes_.push_back(std::move(process));
    }
    return absl::OkStatus();
  }

  // Whether all have ended; `failure` is set by the first that failed.
  bool Poll(absl::Status* failure) {
    std::vector<pollfd> fds;
    bool all_ended = true;
    for (size_t i = 0; i < processes_.size(); ++i) {
      Subprocess& process = *processes_[i];
      process.Poll();
      if (!process.exit_status().has_value()) {
        all_ended = false;
        fds.push_back({process.stdout_fd(), POLLIN, 0});
        fds.push_back({process.stderr_fd(), POLLIN, 0});
      } else if (failure->ok() && !process.exit_status()->ok()) {
        *failure = absl::AbortedError(absl::StrCat(absl::StrJoin(last_lines_[i], " / "), " [",
                                                   process.exit_status()->ToString(), "]"));
      }
    }
    if (!all_ended) poll(fds.data(), fds.size(), kPollMilliseconds);
    return all_ended;
  }

  void Stop() {
    absl::Status ignored;
    for (const int signal : {SIGTERM, SIGKILL}) {
      for (const auto& process : processes_) {
        if (!process->exit_status().has_value()) process->Kill(signal);
      }
      const Deadline until = Deadline::In(kGrace);
      while (!until.passed()) {
        if (Poll(&ignored)) return;
      }
    }
  }

 private:
  std::vector<std::deque<std::string>> last_lines_;
  std::vector<std::unique_ptr<Subprocess>> processes_;  // declared last: they write lines
};

}  // namespace

absl::Status RunProcesses(const std::vector<std::vector<std::string>>& commands,
                          absl::Duration timeout, const std::atomic<int>* interrupt) {
  ProcessSet processes;
  GS_RETURN_IF_ERROR(processes.Start(commands));
  const Deadline deadline = Deadline::In(timeout);
  absl::Status failure;
  while (!processes.Poll(&failure) && failure.ok()) {
    if (interrupt != nullptr && *interrupt != 0) {
      failure = absl::CancelledError("interrupted");
    } else if (deadline.passed()) {
      failure = absl::DeadlineExceededError(
          absl::StrCat("did not end within ", absl::FormatDuration(timeout)));
    }
  }
  if (!failure.ok()) processes.Stop();
  return failure;
}

}  // namespace gradsync
