#include "benchmarks/ranks/interactive_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tools/subprocess.h"

namespace gradsync {

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
