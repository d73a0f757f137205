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
  // Whether it did not begin because of others (core/group/group_error.h).
  bool failed_by_others = false;
  int signal = 0;        // that ended the job in good order before its last step; 0: none
  std::string ended_by;  // for people: by what, where, and what is left of it; empty: by itself

  // 0 for success; 2 for what this process finds wrong before training begins: a bad option, a
  // missing file, an address taken, plans that differ; 1 for failures on the way, to which it belongs
  // that others are lost or cannot be reached; 128 + the signal for a job that was told to end and
  // did.
  int exit_code() const {
    if (status.ok()) return signal == 0 ? 0 : 128 + signal;
    return started || failed_by_others ? 1 : 2;
  }
};

// Runs the job: checks everything that can be checked alone, meets the others, trains, writes
// metrics.
JobOutcome RunJob(JobOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_H_
