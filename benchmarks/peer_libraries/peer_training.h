// Training by gradsync and by Python PyTorch, interleaved in one run.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/records/nccl_log.h"
#include "proto/run_record.pb.h"

namespace gradsync {

struct PeerTrainingOptions {
  std::string model = "resnet18";  // resnet18 or resnet50
  int ranks = 1;
  int batch_size = 128;  // per rank
  int threads = 2;       // compute threads per rank
  int rounds = 15;       // measured turns of each contestant
  int steps_per_round = 3;
  ComputeFlags compute;         // of both sides; the device resolved
  int pixels = 32;              // height and width of images
  int loader_threads = 1;       // of our ranks; PyTorch's batches are made before
  NcclLog::Lookup environment;  // this process's own
  // With more ranks: one contestant of ours per size, to sweep it; empty takes the default.
  std::vector<int64_t> bucket_bytes;
  std::string python = "/usr/bin/python3";  // the Python that has torch and torchvision

  std::string rank_binary;  // //benchmarks:train_rank
  std::string script;       // pytorch_train.py
};

// Trains the same model, with as many processes and threads and the same batch, by
//
//   1 rank        gradsync (topology local); Python PyTorch
//   more ranks    gradsync over the ring in shared memory (for each bucket size); gradsync that
//                 does not synchronise (topology local); PyTorch DDP over Gloo
//   on GPUs       gradsync over NCCL; gradsync that does not synchronise; PyTorch DDP over the NCCL
//                 of its LibTorch; with one rank too, whose DDP has buckets and collectives all the
//                 same
//
// The processes of all contestants live side by side and take turns of a few steps, in an order
// that changes from round to round, so that the machine's drift hits all alike; whoever has no turn
// sleeps. A turn takes from the first rank's start to the last rank's end; on a GPU it
// begins when the GPU is idle and ends when it has done all that was queued. Prints a line per
// round, then medians and, from the ratios of each round, how gradsync compares. The first round is
// for warming up.
//
// Records: one run per contestant; peer_ratio is the median of its time over that of the first
// contestant. A peer that cannot run is said to, and left out.
// Errors: UNAVAILABLE when a process of ours ends early.
absl::StatusOr<std::vector<proto::Run>> RunPeerTraining(const PeerTrainingOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_TRAINING_H_
