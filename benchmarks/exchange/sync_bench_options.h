// What `sync_bench` is asked to do, checked, and the list of measurements that follows from it.

#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_SYNC_BENCH_OPTIONS_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_SYNC_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "benchmarks/options/job_sweep.h"
#include "benchmarks/options/placed_job.h"
#include "gradsync/join/server_weights.h"
#include "proto/rank_spec.pb.h"

namespace gradsync {

// As the flags of the same names have them; see `sync_bench --help`. Without consistencies.
struct SyncBenchOptions : SweepFlags {
  SyncBenchOptions() { servers = {"1", "2"}; }

  std::string device = "cpu";      // that has the buckets, resolved (compute_flags.h)
  std::vector<std::string> bytes;  // none: by min_bytes, max_bytes and factor, or some usual sizes
  std::string min_bytes;
  std::string max_bytes;
  int64_t factor = 0;  // 0: 2
  int iterations = 20;
  int warmup = 5;
  int connections = 0;  // per pair of peers; 0: the topology's default
  std::string bucket_bytes = "25MiB";
  std::string chunk_bytes = "0";
  std::vector<std::string> bandwidths;  // of emulated networks; none: this host alone
  bool emulate = true;                  // false: the bandwidth, one, is only the model's
  std::string server_weights = "auto";
  absl::Duration timeout = absl::Seconds(60);
};

// One measurement: a job of its own.
struct SyncBenchCase {
  PlacedJob job;
  std::string device = "cpu";
  ServerWeights server_weights;  // that were asked for, where there are servers
  double bytes_per_second = 0;   // of the model; 0: no prediction
  ExchangeOptions exchange;      // world_size and codec are the job's
};

// "ring over grpc, 2 ranks, 4KiB".
std::string Describe(const SyncBenchCase& bench_case);

// Checks everything and lists the measurements in the order in which they run: by bandwidth, ranks
// and bytes, so that what is compared is measured close in time. Combinations that cannot be are
// left out, but each value that was asked for occurs, topologies aside (job_sweep.h). Servers over
// NCCL and CUDA IPC are the first so many ranks, and so colocated whatever --placement says.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<std::vector<SyncBenchCase>> ListCases(const SyncBenchOptions& options);

// CheckExchangeMemory() of the measurement.
absl::Status CheckMemoryOf(const SyncBenchCase& bench_case);

// "4097 becomes 4160": the sizes of `cases` that padding changes, each once; empty where there are
// none. Errors: those of ExchangePlan().
absl::StatusOr<std::string> PaddedSizes(const std::vector<SyncBenchCase>& cases);

// What its ranks are told.
proto::RankSpec RankSpecOf(const SyncBenchCase& bench_case);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_SYNC_BENCH_OPTIONS_H_
