// Where a server is in the current step, and whether all ranks mean the same by it.

#ifndef GRADSYNC_PS_SERVER_STEP_PROGRESS_H_
#define GRADSYNC_PS_SERVER_STEP_PROGRESS_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/plan/step_options.h"

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

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_STEP_PROGRESS_H_
