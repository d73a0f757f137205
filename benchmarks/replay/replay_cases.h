// What `train_bench --replay` is asked to do, checked, and the list of measurements that follows
// from it.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CASES_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/options/job_sweep.h"
#include "benchmarks/options/placed_job.h"
#include "core/plan/job_spec.h"
#include "core/plan/plan.h"
#include "proto/rank_spec.pb.h"

namespace gradsync {

// As the flags of the same names have them; see `train_bench --help`.
struct ReplaySweepOptions : SweepFlags {
  std::vector<std::string> profiles;    // paths of files, read by ListReplayCases()
  std::vector<std::string> bandwidths;  // of an emulated network's links; none: no such network
  std::vector<std::string> bucket_bytes = {"25MiB"};
  std::string first_bucket_bytes = "1MiB";
  std::string chunk_bytes = "0";
  std::vector<std::string> compute_scales = {"1"};
  std::string straggler;
  // Strong scaling: samples of all workers per step. n workers replay the one of `profiles` that has
  // a batch of global_batch_size / n. 0: each number of workers replays each profile.
  int64_t global_batch_size = 0;
  int64_t steps = 25;  // warm-up included
  int64_t warmup_steps = 3;
  int connections = 0;  // per pair of peers; 0: the topology's default
  absl::Duration timeout = absl::Seconds(60);
};

// One measurement: a job of its own.
struct ReplayCase {
  PlacedJob job;
  // The file's, without folder and ".json"; under strong scaling, where profiles take turns, their
  // model and the samples of all workers: "resnet18:256".
  std::string profile_name;
  int64_t global_batch_size = 0;  // of strong scaling, else 0
  // Computation in which one worker has done a step's samples; under strong scaling those of all
  // workers, and 0 where no profile has them. Without compute_scale.
  double one_worker_us = 0;
  proto::RankSpec::Replay spec;  // what each rank replays
  absl::Duration timeout;
};

// Of each bucket, outside of a replay's steps, where owners alone keep parameters: once to verify,
// and once for the hash.
constexpr int kExtraGathers = 2;

// "resnet50: ring over grpc, 4 workers".
std::string Describe(const ReplayCase& replay);

// Of a model in stages: "data=2,pipeline=2, 1f1b, 4 micro-batches of 32 samples, cut before 4".
std::string DescribeMesh(const proto::RankSpec::Replay& spec);

// Reads the profiles, checks everything, and lists the measurements in the order in which they run:
// bandwidths outermost, since each has a network of its own, and topologies innermost, so that what
// is compared is measured close in time. Combinations that cannot be are left out, but each value
// that was asked for occurs (job_sweep.h). Errors: INVALID_ARGUMENT naming the flag or the file,
// what was expected and what came; for files also NOT_FOUND and DATA_LOSS.
absl::StatusOr<std::vector<ReplayCase>> ListReplayCases(const ReplaySweepOptions& options);

// A measurement with what is the same in all of `options`, checked, and no profile or job yet.
// Errors: INVALID_ARGUMENT naming the flag.
absl::StatusOr<ReplayCase> CommonReplayCase(const ReplaySweepOptions& options);

// One of `compute_scales`. Errors: INVALID_ARGUMENT naming --compute_scale.
absl::StatusOr<double> ParseComputeScale(const std::string& text);

// What its ranks are told.
proto::RankSpec RankSpecOf(const ReplayCase& replay);

// The plan of a job's workers, which under topology local have one each. Errors: those of
// ProfilePlan() and WithZero().
absl::StatusOr<Plan> ReplayPlan(const proto::RankSpec::Replay& spec, const JobSpec& job,
                                int workers);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_CASES_H_
