#include "benchmarks/ranks/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
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

absl::StatusOr<std::unique_ptr<InteractiveProcess>> InteractiveProcess::Start(
    std::vector<std::string> argv, const std::vector<std::string>& environment) {
  int to_child[2];
  int from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  std::vector<char*> raw;
  for (const std::string& argument : argv) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  const std::vector<char*> variables = ChildEnvironment(environment);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, raw[0], &actions, nullptr, raw.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  close(to_child[0]);
  close(from_child[1]);
  if (error != 0) {
    close(to_child[1]);
    close(from_child[0]);
    return absl::UnavailableError(
        absl::StrCat("cannot start ", argv[0], ": ", absl::ErrnoToStatus(error, "").ToString()));
  }
  // A child that has ended must not end us when we write to it.
  signal(SIGPIPE, SIG_IGN);
  return std::unique_ptr<InteractiveProcess>(
      new InteractiveProcess(pid, fdopen(to_child[1], "w"), from_child[0]));
}

InteractiveProcess::~InteractiveProcess() {
  fclose(to_child_);
  // No call waits for a child's end until a deadline, so it is asked for.
  const Deadline deadline = Deadline::In(kGrace);
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (deadline.passed()) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      break;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  close(from_child_);
}

absl::StatusOr<std::string> InteractiveProcess::ReadLine(Deadline deadline) {
  while (true) {
    const size_t end = unread_.find('\n');
    if (end != unread_.npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd readable = {from_child_, POLLIN, 0};
    const int ready = poll(&readable, 1, deadline.PollTimeout());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && !deadline.passed()) continue;  // it is further away than poll() can say
    if (ready == 0) return absl::DeadlineExceededError("the process said nothing in time");
    char buffer[4096];
    const ssize_t length = read(from_child_, buffer, sizeof buffer);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return absl::UnavailableError("the process has ended");
    unread_.append(buffer, length);
  }
}

void InteractiveProcess::Kill() { kill(pid_, SIGKILL); }

absl::Status InteractiveProcess::WriteLine(const std::string& line) {
  if (fputs(absl::StrCat(line, "\n").c_str(), to_child_) < 0 || fflush(to_child_) != 0) {
    return absl::UnavailableError("the process has ended");
  }
  return absl::OkStatus();
}

}  // namespace gradsync
