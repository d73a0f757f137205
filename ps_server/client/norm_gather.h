// The global gradient norm, when servers run the optimizer and the step clips.

#ifndef GRADSYNC_PS_SERVER_CLIENT_NORM_GATHER_H_
#define GRADSYNC_PS_SERVER_CLIENT_NORM_GATHER_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// Gathers the per-chunk sums of squares of all servers and folds them in the global order of
// buckets and slots, in double, so that the norm has the same bits on every worker, for any number
// of servers, and in every other backend. Thread-safe.
class NormGather {
 public:
  NormGather(const Plan& plan, const ShardMap& shards);

  // The next answers are for `step`.
  void Begin(int64_t step);

  // One server's sums: a double for each of its chunks that are not empty, in order. Returns the
  // norm when it was the last server's. Errors: INVALID_ARGUMENT for another step, a second answer,
  // or a wrong number of sums.
  absl::StatusOr<absl::optional<double>> Add(int server, int64_t step, const Payload& payload);

  // Servers that own anything, hence answer.
  const std::vector<int>& servers() const { return servers_; }

 private:
  std::vector<int> owners_;     // of all chunks that are not empty, in global order
  std::vector<size_t> chunks_;  // number of such chunks, by server
  std::vector<int> servers_;
  Mutex mutex_;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::vector<double>> squares_ ABSL_GUARDED_BY(mutex_);  // by server; empty: not yet
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_NORM_GATHER_H_
