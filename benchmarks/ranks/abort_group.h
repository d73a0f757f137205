#ifndef GRADSYNC_BENCHMARKS_RANKS_ABORT_GROUP_H_
#define GRADSYNC_BENCHMARKS_RANKS_ABORT_GROUP_H_

#include "absl/status/status.h"
#include "sync/gradient_sync.h"

namespace gradsync {

// Ends the exchange for the whole group because of `reason`, and returns what the group agreed on:
// it names the first cause, of which `reason` may be a consequence. Never waits; thread-safe.
inline absl::Status AbortGroup(GradientSync& sync, const absl::Status& reason) {
  sync.Abort(reason);
  const absl::Status agreed = sync.status();
  return agreed.ok() ? reason : agreed;
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_ABORT_GROUP_H_
