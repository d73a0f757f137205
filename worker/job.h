// One worker's whole job, from options to metrics: what main() does after it has read the flags.

#ifndef GRADSYNC_WORKER_JOB_H_
#define GRADSYNC_WORKER_JOB_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "train/trainer.h"
#include "worker/sync_factory.h"

namespace gradsync {

struct JobOptions {
  int rank = 0;
  int world_size = 1;
  std::string master;     // host:port of the store; may be empty for one worker
  std::string port_file;  // rank 0 writes the store's host:port here
  std::string run_id = "job";
  int attempt = 0;
  std::string interface;
  int num_servers = 0;  // servers that register in the store, when sync.servers is empty
  SyncOptions sync;
  TrainerOptions trainer;
  absl::Duration timeout = absl::Seconds(60);
  std::string metrics_json;
  int64_t log_every = 10;  // rank 0 prints a line every so many steps; 0: none
};

struct JobOutcome {
  absl::Status status;
  bool started = false;  // whether training had begun

  // 0 for success; 2 for what is found before training begins: a bad option, a missing file, an address taken or
  // unreachable, plans that differ; 1 for failures on the way.
  int exit_code() const { return status.ok() ? 0 : started ? 1 : 2; }
};

// Runs the job: checks everything that can be checked alone, meets the others, trains, writes metrics.
JobOutcome RunJob(JobOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_H_
