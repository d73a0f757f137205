#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_PLAN_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"

namespace gradsync {

// A measurement of exchanges without a model, as one rank sees it; all ranks agree on all but
// `rank`.
struct ExchangeOptions {
  int rank = 0;
  int world_size = 1;
  int64_t bytes = 0;                         // of one exchange, rounded up to whole floats
  int64_t bucket_bytes = int64_t{25} << 20;  // all buckets but the last have this size
  int64_t chunk_bytes = 0;                   // 0: the plan's default
  Codec codec;                               // none, fp16 or bf16
  bool rounds_at_each_hop = false;           // as a ring does, with such a codec
  int iterations = 1;                        // measured
  int warmup = 0;                            // before them, verified too
  absl::Duration timeout = absl::Seconds(60);
};

// One tensor per bucket, updated by SGD without momentum. Thread-safe. Errors: those of
// Plan::FromBuckets().
absl::StatusOr<Plan> ExchangePlan(const ExchangeOptions& options);

// OK where this machine has the memory that all ranks take together at least: for each element and rank
// a parameter, its expected value and a gradient, the last two on the host alone. To be asked before any
// rank starts: each would find enough for itself. `what` begins the message.
// Errors: RESOURCE_EXHAUSTED naming how much it takes, how much there is and what bounds it.
absl::Status CheckExchangeMemory(absl::string_view what, const ExchangeOptions& options,
                                 bool on_host);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_PLAN_H_
