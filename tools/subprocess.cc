#include "tools/subprocess.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/group/launch_environment.h"

extern char** environ;

namespace gradsync {
namespace {

constexpr absl::string_view kTree = ".runfiles";
constexpr absl::string_view kWorkspace = "gradsync";

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

// The value of the line "oom_kill N".
absl::optional<int64_t> ReadCounter(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int64_t count = 0;
    if (words.size() == 2 && words[0] == "oom_kill" && absl::SimpleAtoi(words[1], &count)) {
      return count;
    }
  }
  return absl::nullopt;
}

// In a container the group that /proc names may be mounted as the root.
absl::optional<int64_t> ReadGroupCounter(const std::string& folder, const std::string& group,
                                         const std::string& file) {
  const absl::optional<int64_t> count = ReadCounter(absl::StrCat(folder, group, "/", file));
  return count.has_value() ? count : ReadCounter(absl::StrCat(folder, "/", file));
}

bool Rose(const absl::optional<int64_t>& before, const absl::optional<int64_t>& now) {
  return before.has_value() && now.has_value() && *now > *before;
}

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
  // What this program ignores is no concern of the other's.
  for (int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);
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

absl::StatusOr<std::string> FindRunfile(absl::string_view argv0, absl::string_view path) {
  std::vector<std::string> folders;
  // A test that runs the program calls it inside the test's own tree, which has its data too.
  const size_t inside = argv0.rfind(absl::StrCat(kTree, "/"));
  if (inside != absl::string_view::npos) {
    folders.push_back(absl::StrCat(argv0.substr(0, inside), kTree, "/", kWorkspace));
  }
  // `bazel run` and `bazel test` start programs in their runfiles.
  std::error_code error;
  const std::string current = std::filesystem::current_path(error).string();
  if (current.find(std::string(kTree) + "/") != std::string::npos) folders.push_back(current);
  const std::string own = OwnPath();
  folders.push_back(absl::StrCat(argv0, kTree, "/", kWorkspace));
  folders.push_back(absl::StrCat(own, kTree, "/", kWorkspace));
  // From bazel-bin/PACKAGE/PROGRAM to bazel-bin.
  folders.push_back(std::filesystem::path(own).parent_path().parent_path().string());
  for (const std::string& folder : folders) {
    const std::string candidate = absl::StrCat(folder, "/", path);
    if (access(candidate.c_str(), R_OK) == 0) return candidate;
  }
  return absl::NotFoundError(
      absl::StrCat("cannot find ", path, " in ", absl::StrJoin(folders, ", ")));
}

OomKills ReadOomKills(const std::string& root) {
  OomKills kills;
  kills.host = ReadCounter(root + "/proc/vmstat");
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;  // "0::/a", or, under version 1, "4:memory:/a"
  while (std::getline(groups, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || kills.group.has_value()) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      kills.group = ReadGroupCounter(root + "/sys/fs/cgroup", parts[2], "memory.events");
    } else if (absl::c_linear_search(controllers, "memory")) {
      kills.group =
          ReadGroupCounter(root + "/sys/fs/cgroup/memory", parts[2], "memory.oom_control");
    }
  }
  return kills;
}

bool HasTimeLimit() {
  rlimit time = {};
  return getrlimit(RLIMIT_CPU, &time) == 0 && time.rlim_max != RLIM_INFINITY;
}

std::string ExplainForeignKill(const OomKills& before, const OomKills& now, bool time_limit) {
  if (Rose(before.group, now.group)) {
    return "by the kernel, as it seems: the memory limit of the control group was reached, and the "
           "kernel has killed a process in it meanwhile (oom_kill)";
  }
  if (Rose(before.host, now.host)) {
    return "by the kernel, as it seems: memory ran out on this host, and the kernel has killed a "
           "process meanwhile (oom_kill in /proc/vmstat)";
  }
  if (before.host.has_value() && now.host.has_value()) {
    return absl::StrCat("by another process",
                        time_limit ? " or for a limit such as ulimit -t, which is set" : "",
                        ": the kernel has killed none meanwhile for want of memory");
  }
  return absl::StrCat("not by the program that started it: by the kernel if memory ran out",
                      time_limit ? " or for a limit such as ulimit -t, which is set" : "",
                      ", or by another process");
}

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
    struct stat info = {};
    if (error == EACCES && stat(argv[0].c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      return absl::PermissionDeniedError(
          absl::StrCat("cannot start ", argv[0], ": it is a folder"));
    }
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
