#include "benchmarks/ranks/interactive_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace gradsync {

absl::StatusOr<std::unique_ptr<InteractiveProcess>> InteractiveProcess::Start(
    std::vector<std::string> argv, const std::vector<std::string>& environment) {
  if (!environment.empty()) {
    argv.insert(argv.begin(), environment.begin(), environment.end());
    argv.insert(argv.begin(), "/usr/bin/env");
  }
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
  pid_t pid = 0;
  const int error = posix_spawn(&pid, raw[0], &actions, nullptr, raw.data(), environ);
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
      new InteractiveProcess(pid, fdopen(to_child[1], "w"), fdopen(from_child[0], "r")));
}

InteractiveProcess::~InteractiveProcess() {
  fclose(to_child_);
  waitpid(pid_, nullptr, 0);
  fclose(from_child_);
}

absl::StatusOr<std::string> InteractiveProcess::ReadLine() {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t length = getline(&line, &capacity, from_child_);
  std::string text = length > 0 ? std::string(line, length) : "";
  free(line);
  if (length <= 0) return absl::UnavailableError("the process has ended");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

absl::Status InteractiveProcess::WriteLine(const std::string& line) {
  if (fputs(absl::StrCat(line, "\n").c_str(), to_child_) < 0 || fflush(to_child_) != 0) {
    return absl::UnavailableError("the process has ended");
  }
  return absl::OkStatus();
}

}  // namespace gradsync
