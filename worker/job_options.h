#ifndef GRADSYNC_WORKER_JOB_OPTIONS_H_
#define GRADSYNC_WORKER_JOB_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "train/trainer.h"
#include "worker/agree_on_flags.h"
#include "worker/open_device.h"
#include "worker/sync_factory.h"

namespace gradsync {

// A worker's flags, resolved.
struct JobOptions {
  int rank = 0;
  int world_size = 1;
  std::string master;     // host:port of the store; may be empty for one worker
  std::string port_file;  // rank 0 writes the store's host:port here
  std::string run_id = "job";
  int attempt = 0;
  std::string interface;
  DeviceOptions device;
  int num_servers = 0;  // servers that register in the store, when sync.servers is empty
  SyncOptions sync;
  std::string nccl_algorithm;  // what NCCL was told to use, e.g. "NCCL_ALGO=Ring"; for records
  TrainerOptions trainer;
  absl::Duration timeout = absl::Seconds(60);
  std::string metrics_json;
  FlagTexts same_on_all_ranks;  // compared before anything else
  int64_t log_every = 10;       // rank 0 prints a line every so many steps; 0: none
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_OPTIONS_H_
