// Which of its settings suits a training contestant best on this machine.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_FASTEST_SETTING_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_FASTEST_SETTING_H_

#include <functional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/peer_libraries/training_contestant.h"
#include "benchmarks/peer_libraries/training_options.h"

namespace gradsync {

// Starts `row` with each of its settings and returns the fastest, ready for its turns; its record
// says of how many it is. Each challenges the fastest so far: both live side by side, take a few
// turns alternately, and the one with the longer median ends, so never more than two have memory.
// The first setting wins where there is nothing to choose. One that cannot run is out, and
// `progress` is told why, as it is told every comparison. Blocks.
//
// Errors: those of TrainingContestant::StartPyTorch for the first setting, when none runs.
absl::StatusOr<TrainingContestant> StartFastest(
    const PeerTrainingOptions& options, const PyTorchRow& row,
    const std::function<void(absl::string_view)>& progress);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_FASTEST_SETTING_H_
