// What changes from step to step and travels with it. Everything that does not change is in the
// plan.

#ifndef GRADSYNC_CORE_PLAN_STEP_OPTIONS_H_
#define GRADSYNC_CORE_PLAN_STEP_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

struct StepOptions {
  // Count of optimizer steps, this one included; the first step of a job is 1. All ranks agree.
  int64_t step = 0;
  // Learning rate of this step; a group's is lr * lr_scale. Owners reject ranks that disagree.
  double lr = 0;
  // Clips the mean gradient to this global 2-norm; 0 does not clip. Owners then hold the step's
  // means until the last bucket, so that nothing of the update overlaps with backward.
  double max_norm = 0;
  // The mean is multiplied by this, after 1/n. 1 without loss scaling.
  double inverse_loss_scale = 1;

  friend bool operator==(const StepOptions& a, const StepOptions& b) {
    return a.step == b.step && a.lr == b.lr && a.max_norm == b.max_norm &&
           a.inverse_loss_scale == b.inverse_loss_scale;
  }
  friend bool operator!=(const StepOptions& a, const StepOptions& b) { return !(a == b); }
};

// "step 3 (lr 0.1, max_norm 0, inverse_loss_scale 1)", for errors.
std::string DescribeStep(const StepOptions& step);

// Whether a step can be trained with, as owners ask of what peers sent: a step of at least 1, a
// learning rate and a max_norm of at least 0, an inverse_loss_scale above 0 (with 0, which a message
// has by default, every mean would be 0), all finite.
// Errors: INVALID_ARGUMENT naming the field, what was expected and what came.
absl::Status CheckStep(const StepOptions& step);

// What means are to be multiplied by so that their global 2-norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), as in torch's clip_grad_norm_. `squares` gives the sum of
// squares of a chunk. It is asked for each chunk that is not empty, in order of bucket and slot,
// and what it gives is added in that order, so that everybody gets the same bits.
double ClipScale(const Plan& plan, double max_norm, absl::FunctionRef<double(ChunkId)> squares);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_STEP_OPTIONS_H_
