// Training by gradsync and by Python PyTorch, interleaved in one run.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/peer_libraries/training_options.h"
#include "proto/run_record.pb.h"

namespace gradsync {

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
// for which settings are tried first where it is not known (fastest_setting.h), and the best of
// them is the one to beat.
//
// The processes of all contestants live side by side and take turns of a few steps, in an order
// that changes from round to round, so that the machine's drift hits all alike; whoever has no turn
// sleeps. A turn takes from the first rank's start to the last rank's end; on a GPU it
// begins when the GPU is idle and ends when it has done all that was queued. Prints a line per
// round, then a table (training_report.h). The first round is for warming up.
//
// Records: one run per contestant (training_report.h). A row of PyTorch's that cannot run, or fails
// later, is said to, with a record that says why, and the others go on.
// Errors: UNAVAILABLE when a process of ours ends early.
absl::StatusOr<std::vector<proto::Run>> RunPeerTraining(const PeerTrainingOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_
