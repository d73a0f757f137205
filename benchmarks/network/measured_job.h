// One job of a measurement: processes, placed on hosts where there are any, and what they say of
// themselves in the end.

#ifndef GRADSYNC_BENCHMARKS_NETWORK_MEASURED_JOB_H_
#define GRADSYNC_BENCHMARKS_NETWORK_MEASURED_JOB_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/records/nccl_log.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"
#include "proto/run_record.pb.h"
#include "tools/local_job.h"

namespace gradsync {

// What all jobs of a program have in common.
struct JobPrograms {
  std::string rank_binary;                      // paths
  std::string server_binary;                    // needed where there are servers
  const EmulatedNetwork* network = nullptr;     // null: this host; not owned
  const std::atomic<int>* interrupt = nullptr;  // as LocalJobOptions has it
  NcclLog::Lookup environment;                  // this process's own; needed over NCCL
};

// The processes of `job`, each on its host, whose metrics are collected. The flags of ranks are the
// caller's; servers are told the timeout.
LocalJobOptions ProcessesOf(const PlacedJob& job, const JobPrograms& programs,
                            absl::Duration timeout);

// What the processes measured. `Metrics` is proto::WorkerMetrics or proto::ExchangeMetrics.
template <typename Metrics>
struct MeasuredJob {
  std::vector<Metrics> ranks;
  std::vector<proto::ServerMetrics> servers;
  std::string nccl_chosen;  // Run.nccl_chosen
};

// Runs the processes, made by ProcessesOf(), and blocks until all are gone. Over NCCL rank 0 logs
// what it chose. Errors: those of RunLocalJobOrFail(); DATA_LOSS when metrics make no sense;
// INTERNAL when a rank ran another backend than `job` says.
template <typename Metrics>
absl::StatusOr<MeasuredJob<Metrics>> RunMeasuredJob(const PlacedJob& job,
                                                    const JobPrograms& programs,
                                                    LocalJobOptions processes) {
  GS_ASSIGN_OR_RETURN(const NcclLog nccl_log,
                      NcclLog::ForLink(job.spec.link, programs.environment));
  processes.rank_0_environment = nccl_log.environment();
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJobOrFail(processes));
  MeasuredJob<Metrics> measured;
  GS_RETURN_IF_ERROR(ParseMetrics(result.worker_metrics, "rank", &measured.ranks));
  GS_RETURN_IF_ERROR(ParseMetrics(result.server_metrics, "server", &measured.servers));
  for (const Metrics& rank : measured.ranks) {
    GS_RETURN_IF_ERROR(CheckRanAsAsked(job.spec, rank));
  }
  measured.nccl_chosen = nccl_log.Chosen();
  return measured;
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_NETWORK_MEASURED_JOB_H_
