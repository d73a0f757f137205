// Dynamic loss scaling for fp16, whose smallest numbers many gradients are below.

#ifndef GRADSYNC_WORKER_TRAIN_LOSS_SCALER_H_
#define GRADSYNC_WORKER_TRAIN_LOSS_SCALER_H_

#include <cstdint>

#include "absl/status/status.h"

namespace gradsync {

// As torch.cuda.amp.GradScaler has them. Powers of two keep scaling free of rounding.
struct LossScalerOptions {
  double initial = 65536;
  double growth = 2;               // the scale is multiplied by it
  int64_t growth_interval = 2000;  // after so many steps in a row that were not skipped
  double backoff = 0.5;            // and by this after one that was
};

// The factor by which the loss of the next step is multiplied before backward; the mean gradient is
// multiplied by its inverse (StepOptions::inverse_loss_scale). A step whose mean gradient is not
// finite must be skipped: its scale was too large.
//
// Arithmetic without I/O: ranks that start alike and skip the same steps have the same scale. Not
// thread-safe.
//
// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018; the rule is GradScaler's.
class LossScaler {
 public:
  // A scale below this says that no scale will help.
  static constexpr double kSmallest = 1.0 / 65536;

  explicit LossScaler(const LossScalerOptions& options)
      : options_(options), scale_(options.initial) {}

  double scale() const { return scale_; }

  // What decides the scale of later steps.
  struct State {
    double scale = 0;
    int64_t good_steps = 0;
  };
  State state() const { return {scale_, good_steps_}; }

  // Goes on where another one was.
  void Restore(const State& state) {
    scale_ = state.scale;
    good_steps_ = state.good_steps;
  }

  // After each step. The scale does not grow beyond what a float holds.
  // Errors: INTERNAL when the scale falls below kSmallest: the gradients are infinite or not a
  // number by themselves.
  absl::Status Update(bool skipped);

 private:
  const LossScalerOptions options_;
  double scale_;
  int64_t good_steps_ = 0;  // in a row, since the scale changed
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_LOSS_SCALER_H_
