#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_PREDICTION_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_PREDICTION_H_

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "benchmarks/replay/replay_cases.h"
#include "proto/run_record.pb.h"
#include "simulator/cluster.h"

namespace gradsync {

// What the simulator says of a measurement on an emulated network, from the same profile, plan and
// stragglers, over as many steps where they differ; nothing without a network, which is what it
// knows. Blocks to compute; thread-safe. Errors: those of PredictRun().
absl::StatusOr<absl::optional<proto::Run>> PredictReplay(const ReplayCase& replay,
                                                         const LinkConstants& constants);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_PREDICTION_H_
