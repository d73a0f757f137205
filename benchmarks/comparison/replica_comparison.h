// What //benchmarks:data_parallel compares: replicas of a model in one process, as many ranks of a
// ring over shared memory, and one process that computes their parts one after the other. Pure
// functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_REPLICA_COMPARISON_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_REPLICA_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/run_record.pb.h"

namespace gradsync {

struct ReplicaComparison {
  std::vector<std::string> replicas = {"2", "4"};
  std::string model = "vgg16";
  std::string data = "synthetic";
  int64_t batch_size = 4;  // samples of a replica, or of a rank, in a step
  int threads = 1;         // compute threads of a replica, or of a rank
  int64_t steps = 8;       // of each job
  int64_t warmup_steps = 2;
  int rounds = 3;
  uint64_t seed = 0;
  absl::Duration timeout = absl::Minutes(2);
};

struct ReplicaJob {
  // How the parts of a step are computed.
  enum class Kind { kAccumulate, kDataParallel, kRing };

  Kind kind = Kind::kAccumulate;
  int parts = 1;

  int workers() const { return kind == Kind::kRing ? parts : 1; }
};

// All kinds, for each number of parts. Errors: INVALID_ARGUMENT naming the flag.
absl::StatusOr<std::vector<ReplicaJob>> ListReplicaJobs(const ReplicaComparison& comparison);

// Of //worker. Equal samples and threads per part, and equal samples per step, in all jobs with as
// many parts.
std::vector<std::string> FlagsOf(const ReplicaComparison& comparison, const ReplicaJob& job);

// "2 replicas in one process", "ring of 2 ranks", "1 process, 2 parts in turn".
std::string NameOf(const ReplicaJob& job);

// The record of one run of the job, by what its workers measured. Errors: those of AggregateRun();
// DATA_LOSS where the workers did another job.
absl::StatusOr<proto::Run> ReplicaRun(const ReplicaJob& job,
                                      const std::vector<proto::WorkerMetrics>& workers);

// A line for each job: its rate, where a step's time is, and the load of device 0, or of rank 0.
std::string ReplicaTable(const std::vector<ReplicaJob>& jobs, const std::vector<proto::Run>& runs);

struct ReplicaVerdict {
  bool bits_agree = false;
  std::string text;  // lines
};

// Whether replicas ended with the bits of the process that computes their parts in turn, and every
// job with the same ones in each round; and how much slower replicas were than ranks. `runs` are of
// `jobs`, over all rounds (compare_rounds.h).
ReplicaVerdict JudgeReplicas(const std::vector<ReplicaJob>& jobs,
                             const std::vector<proto::Run>& runs);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_REPLICA_COMPARISON_H_
