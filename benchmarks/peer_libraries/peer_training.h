// Training by gradsync and by Python PyTorch, interleaved in one run, and what is said of it.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "benchmarks/peer_libraries/training_options.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What one contestant of //benchmarks:peers --train did.
struct TrainingOutcome {
  proto::Run run;               // who it is; with a failure its times are not looked at
  std::vector<double> step_ms;  // mean step of each measured turn, in the order of the rounds
};

// The row of PyTorch's to beat: that with the shortest median step; null when none ran.
const TrainingOutcome* BestPeer(absl::Span<const TrainingOutcome> outcomes);

// The records: times, and for each of ours in peer_ratios the ratio to every row of PyTorch's and
// to the best one (peer_ratio.h), which is also in peer_ratio; for the others peer_ratio is that to
// the first contestant, which must be one of ours. Pure, thread-safe, as is all here.
std::vector<proto::Run> TrainingRecords(absl::Span<const TrainingOutcome> outcomes);

// A table with a line for each contestant, beside it how many times as long it took as each of ours
// that synchronises, with the interval of that ratio. Below it, in sentences: what the settings
// were and who failed; the first contestant against the best row, against the same processes that
// do not synchronise, and the others of ours against it, saying whether topologies or transports
// are compared. `records` are those of `outcomes`.
std::string TrainingTable(absl::Span<const TrainingOutcome> outcomes,
                          absl::Span<const proto::Run> records);

// Trains the same model, with as many processes and threads and the same batch, by
//
//   1 rank        gradsync (topology local); Python PyTorch
//   more ranks    gradsync over the ring in shared memory (for each bucket size), or over what the
//                 options ask for; gradsync that does not synchronise (topology local); PyTorch DDP
//                 over Gloo
//   on GPUs       gradsync over NCCL, or over what the options ask for; gradsync that does not
//                 synchronise; PyTorch DDP over the NCCL of its LibTorch; with one rank too, whose
//                 DDP has buckets and collectives all the same
//
// PyTorch takes part in several rows (training_contestant.h), as a user writes it and at its best,
// for which settings are tried first where it is not known (training_contestant.h), and the best of
// them is the one to beat.
//
// The processes of all contestants live side by side and take turns of a few steps, in an order
// that changes from round to round, so that the machine's drift hits all alike; whoever has no turn
// sleeps. A turn takes from the first rank's start to the last rank's end; on a GPU it
// begins when the GPU is idle and ends when it has done all that was queued. Prints a line per
// round, then the table. The first round is for warming up.
//
// Records: one run per contestant. A row of PyTorch's that cannot run, or fails
// later, is said to, with a record that says why, and the others go on.
// Errors: UNAVAILABLE when a process of ours ends early.
absl::StatusOr<std::vector<proto::Run>> RunPeerTraining(const PeerTrainingOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_
