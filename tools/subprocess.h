// Programs as child processes: where Bazel put them, how they are run, and what the kernel did to
// them.

#ifndef GRADSYNC_TOOLS_SUBPROCESS_H_
#define GRADSYNC_TOOLS_SUBPROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "tools/namespaces.h"

namespace gradsync {

// The path of the built file `path` ("worker/worker"), which must be in the `data` of the program
// that asks. `argv0` is how that program was called. Looked for, in this order: in the runfiles
// tree that `argv0` lies in, in the one that the process was started in, in the one beside `argv0`,
// and relative to where the program itself was built.
// Errors: NOT_FOUND naming `path` and where it was looked for.
absl::StatusOr<std::string> FindRunfile(absl::string_view argv0, absl::string_view path);

// What the kernel counts of processes that it has killed because memory had run out. Unset where
// the kernel does not say.
struct OomKills {
  absl::optional<int64_t> group;  // in the control group of this process, with those below it
  absl::optional<int64_t> host;   // anywhere
};

// Reads /proc/self/cgroup, the group's memory.events (memory.oom_control under version 1), and
// /proc/vmstat, all below `root`. Thread-safe.
OomKills ReadOomKills(const std::string& root = "");

// Whether this process and those that it starts may only use so much time of processors (ulimit
// -t), beyond which the kernel kills them. Thread-safe.
bool HasTimeLimit();

// What is to be said of a process that a SIGKILL of somebody else has ended, after "killed by
// signal 9 (SIGKILL)": whether the kernel has killed for want of memory between `before` and `now`,
// and whether it may have for a limit of time.
std::string ExplainForeignKill(const OomKills& before, const OomKills& now, bool time_limit);

// A child process whose output is read line by line.

// How a process ended.
struct ExitStatus {
  int code = 0;          // as a shell reports it: 128 + signal for a process that a signal killed
  int signal = 0;        // that killed it, or 0
  bool unknown = false;  // the kernel did not say it, and the code is 1

  bool ok() const { return code == 0; }

  // "exit code 2", "killed by signal 9 (SIGKILL)".
  std::string ToString() const;
};

struct SubprocessOptions {
  Namespaces inside;      // which the child enters; they must stay open until Start() has returned
  std::vector<int> keep;  // descriptors that the program has too, under the same numbers
  std::vector<std::string> environment;  // as ChildEnvironment() takes it
};

// The environment of a child, null at its end: this process's own variables without those that a
// launcher has set for this process (core/group/launch_environment.h), which would be wrong for a
// child, and `more`, NAME=value each, over them. Points into `more` and the environment.
std::vector<char*> ChildEnvironment(const std::vector<std::string>& more);

// A child in its own process group, so that a terminal's Ctrl-C reaches only this process, which
// decides what to do about it. Not thread-safe. Nothing but the destructor blocks: call Poll()
// until the process has ended.
//
// It cannot be left behind even by SIGKILL: the kernel kills the child when the thread that started
// it ends, and a second process, the guard, kills what the child has started in its process group
// when this process ends, so a worker that runs below a shell script ends too.
class Subprocess {
 public:
  // Gets each line of stdout and stderr without its newline, from inside Poll(). Lines longer than
  // 64 KiB come in pieces.
  using LineCallback = std::function<void(absl::string_view line, bool is_stderr)>;

  // Starts `argv[0]`, a path; PATH is not searched. Standard input is empty. Where this process
  // ignores SIGCHLD, it does so no more. Errors: NOT_FOUND or PERMISSION_DENIED naming the program;
  // RESOURCE_EXHAUSTED or UNAVAILABLE when the system has no more processes or descriptors.
  static absl::StatusOr<std::unique_ptr<Subprocess>> Start(const std::vector<std::string>& argv,
                                                           LineCallback on_line,
                                                           const SubprocessOptions& options = {});

  // Kills the process with its children if it still runs, and waits until it is gone.
  ~Subprocess();

  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // Delivers what the process has written and looks whether it has ended. If it has, all of its
  // output has been delivered.
  void Poll();

  // Set once the process has ended and was reaped.
  const absl::optional<ExitStatus>& exit_status() const { return exit_status_; }

  // Sends a signal to the process and its children.
  void Kill(int signal);

  pid_t pid() const { return pid_; }

  // File descriptors to wait on for output with poll(2); -1 once closed.
  int stdout_fd() const { return pipes_[0].fd; }
  int stderr_fd() const { return pipes_[1].fd; }

 private:
  struct Pipe {
    int fd = -1;
    std::string partial;  // an unfinished line
  };

  struct GuardProcess {
    pid_t pid = -1;  // -1: the system had no process to spare
    int alive = -1;  // the end of a pipe: open for as long as this process lives
  };

  Subprocess(pid_t pid, GuardProcess guard, int out, int err, LineCallback on_line);
  void DismissGuard();
  void Drain(Pipe* pipe, bool is_stderr, bool ended);
  void Flush(Pipe* pipe, bool is_stderr);

  const pid_t pid_;
  const GuardProcess guard_;
  const LineCallback on_line_;
  Pipe pipes_[2];
  absl::optional<ExitStatus> exit_status_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_SUBPROCESS_H_
