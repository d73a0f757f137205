#include "tools/subprocess.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Runs in the child between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void ExecChild(char* const* argv, int out, int err, int failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv(argv[0], argv);
  const int error = errno;
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (signal == 0) return absl::StrCat("exit code ", code);
  return absl::StrCat("killed by signal ", signal, " (SIG", sigabbrev_np(signal), ")");
}

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(const std::vector<std::string>& argv,
                                                              LineCallback on_line) {
  std::vector<char*> raw;
  for (const std::string& argument : argv) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  int out[2];
  int err[2];
  int failure[2];  // closed by a successful exec
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || pipe2(failure, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  const pid_t pid = fork();
  if (pid == 0) ExecChild(raw.data(), out[1], err[1], failure[1]);
  close(out[1]);
  close(err[1]);
  close(failure[1]);
  std::unique_ptr<Subprocess> process(new Subprocess(pid, out[0], err[0], std::move(on_line)));
  int error = pid < 0 ? errno : 0;
  if (pid > 0 && read(failure[0], &error, sizeof(error)) != sizeof(error)) error = 0;
  close(failure[0]);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
  return process;
}

Subprocess::Subprocess(pid_t pid, int out, int err, LineCallback on_line)
    : pid_(pid), on_line_(std::move(on_line)) {
  pipes_[0].fd = out;
  pipes_[1].fd = err;
  SetNonBlocking(out);
  SetNonBlocking(err);
}

Subprocess::~Subprocess() {
  if (!exit_status_.has_value() && pid_ > 0) {
    Kill(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (Pipe& pipe : pipes_) {
    if (pipe.fd >= 0) close(pipe.fd);
  }
}

void Subprocess::Poll() {
  if (exit_status_.has_value()) return;
  int status = 0;
  const bool ended = waitpid(pid_, &status, WNOHANG) == pid_;
  Drain(&pipes_[0], false);
  Drain(&pipes_[1], true);
  if (!ended) return;
  Flush(&pipes_[0], false);
  Flush(&pipes_[1], true);
  exit_status_ = WIFSIGNALED(status) ? ExitStatus{0, WTERMSIG(status)}
                                     : ExitStatus{WEXITSTATUS(status), 0};
}

void Subprocess::Kill(int signal) {
  // The group may not exist yet if the child has not come to setpgid.
  if (kill(-pid_, signal) != 0) kill(pid_, signal);
}

void Subprocess::Drain(Pipe* pipe, bool is_stderr) {
  char buffer[4096];
  while (pipe->fd >= 0) {
    const ssize_t count = read(pipe->fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    if (count == 0) {
      close(pipe->fd);
      pipe->fd = -1;
      return;
    }
    for (char c : absl::string_view(buffer, count)) {
      if (c == '\n') {
        on_line_(pipe->partial, is_stderr);
        pipe->partial.clear();
      } else {
        pipe->partial.push_back(c);
      }
    }
  }
}

void Subprocess::Flush(Pipe* pipe, bool is_stderr) {
  if (!pipe->partial.empty()) on_line_(pipe->partial, is_stderr);
  pipe->partial.clear();
}

}  // namespace gradsync
