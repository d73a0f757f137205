#include "tools/subprocess.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/group/launch_environment.h"

extern char** environ;

namespace gradsync {
namespace {

constexpr size_t kMaxLineBytes = 64 << 10;
constexpr int kReadsPerPoll = 16;

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Two ends of a pipe that exec closes; each end is closed at the latest with this object.
struct PipeEnds {
  int read = -1;
  int write = -1;

  PipeEnds() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return;
    read = fds[0];
    write = fds[1];
  }
  ~PipeEnds() {
    CloseWrite();
    if (read >= 0) close(read);
  }
  PipeEnds(const PipeEnds&) = delete;
  PipeEnds& operator=(const PipeEnds&) = delete;

  void CloseWrite() {
    if (write >= 0) close(write);
    write = -1;
  }
  int ReleaseRead() { return std::exchange(read, -1); }
  int ReleaseWrite() { return std::exchange(write, -1); }
};

[[noreturn]] void FailChild(int failure, int error) {
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

// Runs in the child between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void ExecChild(char* const* argv, char* const* environment, pid_t parent, int out,
                            int err, int failure, const SubprocessOptions& options) {
  setpgid(0, 0);
  if (const int error = EnterNamespaces(options.inside); error != 0) FailChild(failure, error);
  // After the namespaces, which would undo it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have gone before prctl, and then no signal comes.
  if (getppid() != parent) _exit(126);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (int fd : options.keep) fcntl(fd, F_SETFD, 0);
  std::signal(SIGPIPE, SIG_DFL);  // what this program ignores is no concern of the other's
  execve(argv[0], argv, environment);
  FailChild(failure, errno);
}

// Leaves `kept` open, as standard input. A pipe would seem to have a reader, or a writer, for as long
// as a copy of its end is open.
void CloseAllBut(int kept) {
  if (dup2(kept, STDIN_FILENO) < 0) _exit(126);
  if (syscall(SYS_close_range, STDIN_FILENO + 1, ~0U, 0) == 0) return;
  const long count = sysconf(_SC_OPEN_MAX);  // an old kernel
  for (long fd = STDIN_FILENO + 1; fd < count; ++fd) close(static_cast<int>(fd));
}

// The guard of process group `group`: waits until the other end of `parent_alive` is closed, which
// the kernel does however the parent ends. Only async-signal-safe calls are allowed.
[[noreturn]] void Guard(pid_t group, int parent_alive) {
  setsid();  // no terminal's signal, nor one to the parent's group, is for it
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
  prctl(PR_SET_NAME, "child-guard");
  CloseAllBut(parent_alive);
  char none = 0;
  while (read(STDIN_FILENO, &none, 1) < 0 && errno == EINTR) {
  }
  kill(-group, SIGKILL);
  _exit(0);
}

// A parent may have had this process ignore SIGCHLD: the kernel would then keep nothing of children
// that have ended.
void KeepEndedChildren() {
  struct sigaction action = {};
  sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN) std::signal(SIGCHLD, SIG_DFL);
}

// Returns the guard's process, or -1 where the system has none to spare: the kernel's own
// arrangement stays.
pid_t StartGuard(pid_t group, int parent_alive) {
  const pid_t guard = fork();
  if (guard == 0) Guard(group, parent_alive);
  return guard;
}

}  // namespace

std::vector<char*> ChildEnvironment(const std::vector<std::string>& more) {
  std::vector<char*> all;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    const absl::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(more.begin(), more.end(), [name](absl::string_view own) {
      return own.substr(0, own.find('=')) == name;
    });
    if (!replaced && !IsLauncherVariable(name)) all.push_back(*variable);
  }
  for (const std::string& text : more) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

std::string ExitStatus::ToString() const {
  if (unknown) return "ended with a code that nobody has kept";
  if (signal == 0) return absl::StrCat("exit code ", code);
  return absl::StrCat("killed by signal ", signal, " (SIG", sigabbrev_np(signal), ")");
}

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(const std::vector<std::string>& argv,
                                                              LineCallback on_line,
                                                              const SubprocessOptions& options) {
  std::vector<char*> raw;
  for (const std::string& argument : argv) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  const std::vector<char*> environment = ChildEnvironment(options.environment);
  PipeEnds out;
  PipeEnds err;
  PipeEnds failure;  // closed by a successful exec, else it carries the errno
  PipeEnds alive;    // its write end is closed when this process ends
  if (out.read < 0 || err.read < 0 || failure.read < 0 || alive.read < 0) {
    return absl::ErrnoToStatus(errno, "pipe");
  }
  KeepEndedChildren();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot start ", argv[0]));
  if (pid == 0) {
    ExecChild(raw.data(), environment.data(), parent, out.write, err.write, failure.write, options);
  }
  const pid_t guard = StartGuard(pid, alive.read);
  out.CloseWrite();
  err.CloseWrite();
  failure.CloseWrite();
  std::unique_ptr<Subprocess> process(new Subprocess(pid, {guard, alive.ReleaseWrite()},
                                                     out.ReleaseRead(), err.ReleaseRead(),
                                                     std::move(on_line)));
  int error = 0;
  if (read(failure.read, &error, sizeof(error)) == sizeof(error)) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
  }
  return process;
}

Subprocess::Subprocess(pid_t pid, GuardProcess guard, int out, int err, LineCallback on_line)
    : pid_(pid), guard_(guard), on_line_(std::move(on_line)) {
  pipes_[0].fd = out;
  pipes_[1].fd = err;
  SetNonBlocking(out);
  SetNonBlocking(err);
}

Subprocess::~Subprocess() {
  if (!exit_status_.has_value()) {
    Kill(SIGKILL);
    waitpid(pid_, nullptr, 0);
    DismissGuard();
  }
  for (Pipe& pipe : pipes_) {
    if (pipe.fd >= 0) close(pipe.fd);
  }
}

void Subprocess::Poll() {
  if (exit_status_.has_value()) return;
  int status = 0;
  const pid_t found = waitpid(pid_, &status, WNOHANG);
  const bool lost = found < 0 && errno == ECHILD;  // somebody else has reaped it
  const bool ended = found == pid_ || lost;
  Drain(&pipes_[0], false, ended);
  Drain(&pipes_[1], true, ended);
  if (!ended) return;
  DismissGuard();
  Flush(&pipes_[0], false);
  Flush(&pipes_[1], true);
  if (lost) {
    exit_status_ = ExitStatus{1, 0, /*unknown=*/true};
    return;
  }
  exit_status_ = WIFSIGNALED(status) ? ExitStatus{128 + WTERMSIG(status), WTERMSIG(status)}
                                     : ExitStatus{WEXITSTATUS(status), 0};
}

// Once the child was reaped its number may become another process's.
void Subprocess::DismissGuard() {
  if (guard_.pid > 0) {
    kill(guard_.pid, SIGKILL);
    waitpid(guard_.pid, nullptr, 0);
  }
  close(guard_.alive);
}

void Subprocess::Kill(int signal) {
  // The group may not exist yet if the child has not come to setpgid.
  if (kill(-pid_, signal) != 0) kill(pid_, signal);
}

void Subprocess::Drain(Pipe* pipe, bool is_stderr, bool ended) {
  char buffer[4096];
  // A process that writes without end must not keep the caller here.
  for (int i = 0; pipe->fd >= 0 && (ended || i < kReadsPerPoll); ++i) {
    const ssize_t count = read(pipe->fd, buffer, sizeof(buffer));
    if (count < 0) return;
    if (count == 0) {
      close(pipe->fd);
      pipe->fd = -1;
      return;
    }
    for (char c : absl::string_view(buffer, count)) {
      if (c != '\n') pipe->partial.push_back(c);
      if (c == '\n' || pipe->partial.size() == kMaxLineBytes) {
        on_line_(pipe->partial, is_stderr);
        pipe->partial.clear();
      }
    }
  }
}

void Subprocess::Flush(Pipe* pipe, bool is_stderr) {
  if (!pipe->partial.empty()) on_line_(pipe->partial, is_stderr);
  pipe->partial.clear();
}

}  // namespace gradsync
