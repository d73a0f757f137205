#include "benchmarks/network/measured_job.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

LocalJobOptions ProcessesOf(const PlacedJob& job, const JobPrograms& programs,
                            absl::Duration timeout) {
  LocalJobOptions processes;
  processes.worker_binary = programs.rank_binary;
  processes.server_binary = programs.server_binary;
  processes.workers = job.workers;
  processes.servers = ServerProcesses(job);
  processes.server_flags = {absl::StrCat("--timeout=", absl::FormatDuration(timeout))};
  if (programs.network != nullptr) {
    processes.lab = &programs.network->lab();
    processes.hosts = HostsOf(job);
  }
  processes.collect_metrics = true;
  processes.start_timeout = timeout;
  processes.interrupt = programs.interrupt;
  return processes;
}

}  // namespace gradsync
