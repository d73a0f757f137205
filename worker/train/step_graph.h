#ifndef GRADSYNC_WORKER_TRAIN_STEP_GRAPH_H_
#define GRADSYNC_WORKER_TRAIN_STEP_GRAPH_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/data/data_loader.h"
#include "worker/train/batch_figures.h"

namespace gradsync {

// Forward and backward of a job's steps, as a CUDA graph where that can be: the first steps run as
// they are, so that libraries set themselves up and choose their algorithms; then one is captured,
// and every batch of that shape replays it. A batch of another shape, the last one of an epoch say,
// runs as it is.
//
// Not thread-safe. Does not wait for the GPU.
class StepGraph {
 public:
  // Queues forward, loss and backward over a batch.
  using ForwardBackward = std::function<BatchFigures(const Batch&)>;

  // Both must outlive this object. Without `enabled` every step runs as it is.
  StepGraph(DdpEngine* ddp, bool enabled, ForwardBackward forward_backward)
      : ddp_(ddp), enabled_(enabled), forward_backward_(std::move(forward_backward)) {}

  // A step up to its FinishStep(). Returns its figures, which a later step may overwrite. Errors:
  // those of BeginStep() and Capture(); INTERNAL when LibTorch throws.
  absl::StatusOr<BatchFigures> Run(const StepOptions& step, const Batch& batch);

 private:
  static constexpr int kStepsBefore = 3;

  absl::StatusOr<BatchFigures> RunAsItIs(const StepOptions& step, const Batch& batch);
  absl::Status CaptureFor(const Batch& batch);
  bool Fits(const Batch& batch) const;

  DdpEngine* const ddp_;
  const bool enabled_;
  const ForwardBackward forward_backward_;
  int steps_ = 0;             // that ran as they are
  bool have_ = false;         // a graph
  int64_t most_samples_ = 0;  // of a batch so far
  Batch inputs_;              // the graph's
  BatchFigures figures_;      // the graph's
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STEP_GRAPH_H_
