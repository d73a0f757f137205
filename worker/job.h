// One worker's whole job, from options to metrics: what main() does after it has read the flags.

#ifndef GRADSYNC_WORKER_JOB_H_
#define GRADSYNC_WORKER_JOB_H_

#include <string>

#include "absl/status/status.h"
#include "worker/job_options.h"

namespace gradsync {

struct JobOutcome {
  absl::Status status;
  bool started = false;  // whether training had begun
  int signal = 0;        // that ended the job in good order before its last step; 0: none
  std::string ended_by;  // for people: by what, where, and what is left of it; empty: by itself

  // 0 for success; 2 for what is found before training begins: a bad option, a missing file, an
  // address taken or unreachable, plans that differ; 1 for failures on the way; 128 + the signal
  // for a job that was told to end and did.
  int exit_code() const { return status.ok() ? (signal == 0 ? 0 : 128 + signal) : started ? 1 : 2; }
};

// Runs the job: checks everything that can be checked alone, meets the others, trains, writes
// metrics.
JobOutcome RunJob(JobOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_H_
