// Where a server is in the current step, whether all ranks mean the same by it, and whether chunks come
// in their order.

#ifndef GRADSYNC_PS_SERVER_STEP_PROGRESS_H_
#define GRADSYNC_PS_SERVER_STEP_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// One step is under way at a time: a worker begins the next only after it has received every chunk
// of this one. Thread-safe.
class StepProgress {
 public:
  StepProgress(int chunks, int world_size) : chunks_(chunks), norms_(world_size) {}

  // `rank` pushes a chunk of `step`. Begins the step if none is under way.
  // Errors: INVALID_ARGUMENT naming both ranks and their values when ranks disagree about number,
  // lr, max_norm or inverse loss scale, and when the number does not grow.
  absl::Status Enter(int rank, const StepOptions& step);

  // One chunk's mean is complete. True for the last one of the step.
  bool ChunkFolded();

  // `rank` gives the global norm of the step. True for the last rank.
  // Errors: INVALID_ARGUMENT when the step is another, a rank answers twice or too early, or norms
  // differ in any bit.
  absl::StatusOr<bool> AddNorm(int rank, int64_t step, double norm);

  // One chunk's result is about to be sent. After the last one the step is over.
  void ChunkFinished();

  // Between steps: the state of the optimizer after step `step` was imported.
  void SetLastStep(int64_t step);

  bool idle() const;
  int64_t steps_begun() const;  // by Enter()
  StepOptions step() const;     // under way, or the last one

 private:
  const int chunks_;
  mutable Mutex mutex_;
  StepOptions step_ ABSL_GUARDED_BY(mutex_);
  int first_rank_ ABSL_GUARDED_BY(mutex_) = 0;  // that began the step
  int unfolded_ ABSL_GUARDED_BY(mutex_) = 0;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t steps_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::optional<double>> norms_ ABSL_GUARDED_BY(mutex_);
};

// The order in which a worker's chunks must come on one stream.
//
// Chunk number q of PushOrder() travels on connection q mod C, for gradients in each step and for
// parameters in each broadcast. Holds one stream to it: that every stream carries its worker's
// order is what keeps the fold from deadlock. Not thread-safe.
class PushSequence {
 public:
  // Of worker `rank`. `order` is this server's, and must outlive the sequence.
  PushSequence(const ServerPushOrder* order, int rank, int connection, int connections)
      : order_(order), rank_(rank), connection_(connection), connections_(connections) {
    next_push_ = next_parameters_ = connection_;
  }

  // A gradient came. Errors: INVALID_ARGUMENT saying which chunk of which step was expected, and
  // what came.
  absl::Status Push(ChunkId found, int64_t step);

  // A chunk of parameters came, which is only allowed between steps. Errors: likewise.
  absl::Status Parameters(ChunkId found);

 private:
  absl::Status Check(size_t next, ChunkId found) const;
  void Advance(size_t& next) const;

  const ServerPushOrder* order_;
  int rank_;
  size_t connection_;
  size_t connections_;
  size_t next_push_ = 0;
  size_t next_parameters_ = 0;
  int64_t step_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_STEP_PROGRESS_H_
