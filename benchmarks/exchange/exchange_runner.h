#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_RUNNER_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_RUNNER_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "core/sync/gradient_sync.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// One rank of a measurement: binds, broadcasts, then exchanges `warmup + iterations` times. Before
// each exchange it fills the gradients with inputs whose sums are exact (exact_input.h) and calls
// `start`, which must return on all ranks at about the same time; after it, it counts every element
// that is wrong (under compression: other than rounded as core/plan/codec.h says). Only launching
// and waiting is timed. Where the buckets are on a GPU (GradientSync::gpu()), it is idle at the
// beginning, and the end is when it has done everything, which is then waited for on the host.
// Under UpdateSite::kOwner the parameters are checked instead, with a learning rate that is a power
// of two, so that they round only once.
//
// Blocks until all ranks are done, shut down included.
// Errors: what the backend or `start` says. Wrong results are counted, not an error.
absl::StatusOr<proto::ExchangeMetrics> RunExchanges(const ExchangeOptions& options,
                                                    const std::function<absl::Status()>& start,
                                                    GradientSync* sync);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_RUNNER_H_
