// Who trains in //benchmarks:peers --train: processes of ours and of PyTorch's that wait for their
// turns.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_CONTESTANT_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_CONTESTANT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "benchmarks/peer_libraries/training_options.h"
#include "benchmarks/ranks/processes.h"
#include "benchmarks/records/nccl_log.h"
#include "core/base/deadline.h"
#include "core/plan/job_spec.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// One of ours.
struct OurRow {
  JobSpec spec;              // of topology and link; kAuto: what //worker takes
  int64_t bucket_bytes = 0;  // 0: the default
  bool eager = false;        // on a GPU: without the CUDA graph
};

// Those that the options ask for, on GPUs the first of them without the CUDA graph too; the last
// one does not synchronise, and is left out where one rank on a GPU has nobody to wait for anyway.
std::vector<OurRow> OurRows(const PeerTrainingOptions& options);

// One of PyTorch's, as pytorch_train.py has settings and backend.
struct PyTorchRow {
  std::string name;  // "pytorch ddp best"
  std::string settings;
  std::string backend = "auto";
  std::vector<std::string> other_settings = {};  // to be tried too (StartFastest())
};

// Those that the options ask for, or all that make sense:
//
//   default    as a user writes it who sets nothing
//   best       with every setting that makes DDP faster (docs/internals/nccl.md); on CPUs several sets of
//              settings are tried, since not all help everywhere
//   compiled   GPUs: best, and torch.compile
//   graphs     GPUs, experimental: the whole step as a CUDA graph
//   compiled_graphs  the same, with a model that torch.compile has compiled
//   gloo       GPUs, where one of ours goes through the host: best, over Gloo
//
// The one to beat, best, comes first: it has its memory before the others want theirs.
std::vector<PyTorchRow> PyTorchRows(const PeerTrainingOptions& options);

// Processes that wait for their turn. What libraries print on their standard output is printed on
// ours. Movable, not thread-safe. Methods block; where they fail, the
// contestant is of no more use.
class TrainingContestant {
 public:
  // Starts the processes and waits until they are ready. Errors: UNAVAILABLE when one cannot be
  // started, or ends, or says that it cannot run; DEADLINE_EXCEEDED (PyTorch's alone).
  static absl::StatusOr<TrainingContestant> StartOurs(const PeerTrainingOptions& options,
                                                      const OurRow& row);
  static absl::StatusOr<TrainingContestant> StartPyTorch(const PeerTrainingOptions& options,
                                                         const PyTorchRow& row);

  // A turn of so many steps on all ranks. Returns milliseconds per step, from the first rank's
  // start to the last rank's end. Errors: UNAVAILABLE when a process has ended or says that it
  // cannot go on, DEADLINE_EXCEEDED (PyTorch's alone).
  absl::StatusOr<double> TakeTurn(int steps);

  // After the last turn: what NCCL chose, for the record.
  std::string NcclChosen() const {
    return nccl_log_.has_value() ? nccl_log_->Chosen() : std::string();
  }

  const std::string& name() const { return name_; }  // "gradsync ring/shm", "pytorch ddp best"
  // Of the record: who it is, and on what it runs.
  const proto::Run& run() const { return run_; }
  // Adds to the settings in the record, in brackets.
  void AddNote(const std::string& note);

 private:
  TrainingContestant() = default;

  absl::Status StartRanks(const PeerTrainingOptions& options, std::vector<std::string> command);
  absl::StatusOr<std::string> AwaitReady();
  void SetSettings(const std::string& settings);
  Deadline NewDeadline() const { return Deadline::In(timeout_); }

  std::string name_;
  bool over_nccl_ = false;
  bool meets_ = false;  // its ranks, by a store that rank 0 holds
  absl::Duration timeout_ = absl::InfiniteDuration();
  std::vector<std::unique_ptr<InteractiveProcess>> ranks_;
  absl::optional<NcclLog> nccl_log_;
  proto::Run run_;
};

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

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_CONTESTANT_H_
