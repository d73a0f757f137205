// One training job on this machine: servers and workers as processes, started in order, watched together, ended together.

#ifndef GRADSYNC_TOOLS_LOCAL_JOB_H_
#define GRADSYNC_TOOLS_LOCAL_JOB_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

struct LocalJobOptions {
  std::string worker_binary;
  std::string server_binary;  // needed when servers > 0
  int workers = 1;
  int servers = 0;
  std::vector<std::string> worker_flags;  // after those that this library sets
  std::vector<std::string> server_flags;
  // Gets every line that a process prints; `process` is "worker 0", "server 1", ... May be empty.
  std::function<void(absl::string_view process, absl::string_view line, bool is_stderr)> on_line;
  // Called when a process has started. May be empty.
  std::function<void(absl::string_view process, int pid)> on_start;
  // Called once when the job fails, with one line that names the process that failed first. May be empty.
  std::function<void(absl::string_view message)> on_failure;
  // Whether each process writes --metrics_json; the result then has the files' contents.
  bool collect_metrics = false;
  // Longest wait for a process to say where it listens.
  absl::Duration start_timeout = absl::Seconds(60);
  // Between SIGTERM and SIGKILL once the job has failed.
  absl::Duration grace = absl::Seconds(3);
  // Set from a signal handler to the signal that should end the job; null when nobody does.
  const std::atomic<int>* interrupt = nullptr;
};

struct LocalJobResult {
  // 0 if all processes succeeded; otherwise that of the first failure as a shell reports it (128 + signal).
  int exit_code = 0;
  std::string failure;                      // one line naming the process that failed first; empty on success
  std::string failure_detail;               // what that process printed last on stderr
  std::vector<std::string> worker_metrics;  // JSON by rank, when collected
  std::vector<std::string> server_metrics;
};

// Runs the job to its end. Servers listen on free ports of 127.0.0.1, rank 0 holds the store on another; workers get
// --rank, --world_size, --master and, with servers, --servers. When a process fails, the others are told to end, and killed
// after the grace period; nothing is left behind, neither a process nor a file, also not if this process is killed.
// Errors: NOT_FOUND when a binary cannot be started; UNAVAILABLE when no temporary folder can be made.
absl::StatusOr<LocalJobResult> RunLocalJob(const LocalJobOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_LOCAL_JOB_H_
