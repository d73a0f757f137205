// One training job on this machine: servers and workers as processes, started in order, watched
// together, ended together.

#ifndef GRADSYNC_TOOLS_LOCAL_JOB_H_
#define GRADSYNC_TOOLS_LOCAL_JOB_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/network_lab.h"

namespace gradsync {

struct LocalJobOptions {
  std::string worker_binary;  // paths
  std::string server_binary;  // needed when servers > 0
  int workers = 1;
  int servers = 0;
  // Which time the job is started, from 0; processes of a later one are told --attempt=, as //worker
  // and //ps_server have it.
  int attempt = 0;
  // Whether workers are told --local_rank=, as //worker has it: on this host a rank is that, or,
  // where several share a GPU, the number of their GPU.
  bool tell_local_rank = false;
  int ranks_per_gpu = 1;
  // Put after the flags that RunLocalJob() sets, so that they win.
  std::vector<std::string> worker_flags;
  std::vector<std::string> server_flags;
  // Of the worker of rank 0, beside the caller's own: NAME=value each.
  std::vector<std::string> rank_0_environment;
  // Of each worker, likewise, before that; may be empty.
  std::function<std::vector<std::string>(int rank)> worker_environment;

  // Where the processes run: each on the host of `lab` that `hosts` has for it, workers by rank and
  // then servers (as core/plan/wire_traffic.h numbers them), where it listens at the host's
  // address. Without a lab all run where the caller does, and listen at 127.0.0.1. Not owned.
  const NetworkLab* lab = nullptr;
  std::vector<int> hosts;

  // The callbacks run on the caller's thread, inside RunLocalJob(); each may be empty. A process is
  // called "worker 0" (by rank), "server 1", ...
  std::function<void(absl::string_view process, absl::string_view line, bool is_stderr)> on_line;
  std::function<void(absl::string_view process, int pid)> on_start;
  // Once, when the job fails, before the rest is stopped: LocalJobResult::failure where a process
  // was killed, else DescribeFailure(), since whoever ends first may only have heard of the cause.
  std::function<void(absl::string_view failure)> on_failure;

  // Whether each process writes --metrics_json; the result then has the files' contents.
  bool collect_metrics = false;

  // Whether rank 0 may end with 0 before it says where it listens, as a worker does that only checks
  // data or describes a model; the job is over then, and well. If not, that is a failure.
  bool may_end_at_once = false;

  // Longest wait for a process to say where it listens.
  absl::Duration start_timeout = absl::Seconds(60);
  // After a failure the others have this long to notice by themselves, so that they can say what
  // they saw; at least `stopped` where the first failure is that. Skipped when it is exit code 2: bad
  // input, found before training.
  absl::Duration settle = absl::Seconds(3);
  // Between SIGTERM and SIGKILL.
  absl::Duration grace = absl::Seconds(3);
  // How long servers may take to end once all workers have succeeded.
  absl::Duration linger = absl::Seconds(10);
  // How long other workers may take to end once that of rank 0 has succeeded. Infinite where it does
  // not wait for them.
  absl::Duration outlive = absl::InfiniteDuration();
  // A process that is stopped for longer, by a signal or, its first thread, by a debugger, has
  // failed, unless all are.
  absl::Duration stopped = absl::InfiniteDuration();

  // Holds the number of the signal that should end the job, or 0; a signal handler may set it. The
  // signal goes to all processes, which then have as long as `drain` says to end in good order
  // before SIGKILL. Null when nobody interrupts.
  const std::atomic<int>* interrupt = nullptr;
  absl::Duration drain = absl::Seconds(3);
  // How many such signals came: after the second, SIGKILL is sent at once. May be null.
  const std::atomic<int>* interrupts = nullptr;
};

struct LocalJobResult {
  // 0 if all processes succeeded; otherwise that of the first failure as a shell reports it: the
  // exit code, or 128 + signal. It is 2 also where others ended with 1 before the process did that
  // has refused its input. Of an interrupted job 128 + signal, unless it did not end in good
  // order: then that of `drain_failure`.
  int exit_code = 0;
  // "worker 1 (pid 123): killed by signal 9 (SIGKILL)": the process that failed first. Empty on
  // success.
  std::string failure;
  // What that process printed last on stderr; of --log_format=json as the text that it would be.
  std::string failure_detail;
  // Of a job that was interrupted and did not end in good order: who was the first that did not, and
  // why, as DescribeFailure() has it. Empty where each process ended with 0 or with 128 + signal,
  // where one that did not catch the signal yet was killed by it, and after a second interrupt.
  std::string drain_failure;
  // Contents of the metrics files, by rank and by server, when collected and all succeeded.
  std::vector<std::string> worker_metrics;
  std::vector<std::string> server_metrics;
};

// A failed job's own words, from the culprit on if they name one (core/base/errors.h), then who
// failed:
// "rank 0 lost: ... [worker 1 (pid 123): exit code 1]".
std::string DescribeFailure(const LocalJobResult& result);

// Runs the job and blocks until all of its processes are gone. Servers listen on free ports, and
// rank 0 holds the store on another; no port is guessed. Servers get --listen;
// workers get --rank, --world_size, --master and, with servers, --topology=ps --servers. When a
// process fails, the rest is stopped within settle + grace. No process is left behind, whatever
// ends the caller, and no file unless the caller is killed. Call it from a thread that lives as
// long as the job.
// Errors: INVALID_ARGUMENT for fewer than one worker, negative servers, or hosts that do not fit
// the lab; NOT_FOUND or PERMISSION_DENIED when a binary cannot be started; UNAVAILABLE when no
// temporary folder can be made. Failures of the job's processes are a result, not an error.
absl::StatusOr<LocalJobResult> RunLocalJob(const LocalJobOptions& options);

// The same, for those to whom a job that fails is an error.
// Errors: also CANCELLED when it was interrupted; INVALID_ARGUMENT, with DescribeFailure(), when a
// process refused its flags (exit code 2), and ABORTED when one failed otherwise.
absl::StatusOr<LocalJobResult> RunLocalJobOrFail(const LocalJobOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_LOCAL_JOB_H_
