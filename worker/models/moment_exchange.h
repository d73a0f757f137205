#ifndef GRADSYNC_WORKER_MODELS_MOMENT_EXCHANGE_H_
#define GRADSYNC_WORKER_MODELS_MOMENT_EXCHANGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// How synchronised normalisation meets the other ranks, in the middle of forward and backward.
// Models know nothing else of them. Not thread-safe.
class MomentExchange {
 public:
  virtual ~MomentExchange() = default;

  // Collective: everybody's bytes, by rank. Blocks until all have come. All ranks make the same
  // calls in the same order, as those do who run equal models on batches at the same time. Errors:
  // the implementation's, after one of which every later call fails.
  virtual absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MOMENT_EXCHANGE_H_
