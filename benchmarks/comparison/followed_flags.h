// What predictions of `compare` follow of the flags that its workers are given.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_FOLLOWED_FLAGS_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_FOLLOWED_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/prediction/prediction.h"

namespace gradsync {

struct FollowedFlags {
  // Sets what they say of `job`, whose place is set already.
  void ApplyTo(PredictedJob* job) const;

  int64_t bucket_bytes = PredictedJob().bucket_bytes;
  int64_t first_bucket_bytes = PredictedJob().first_bucket_bytes;
  int64_t chunk_bytes = 0;            // 0: the workers' default
  int connections = 0;                // 0: the topology's default
  std::vector<std::string> recorded;  // with which //benchmarks:train_bench records a step
};

// Of the flags behind "--", the precision and the memory format. Pure, thread-safe.
// Errors: FAILED_PRECONDITION naming a flag that may make steps of which nothing is known;
// INVALID_ARGUMENT for a value that is none.
absl::StatusOr<FollowedFlags> FollowFlags(const CompareOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_FOLLOWED_FLAGS_H_
