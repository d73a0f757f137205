// How a job learns: the learning rate as a function of the step, and how many batches make a step.
// No state: a job may restart anywhere.

#ifndef GRADSYNC_WORKER_TRAIN_RECIPE_H_
#define GRADSYNC_WORKER_TRAIN_RECIPE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

enum class Schedule {
  kConstant,  // base
  kStep,      // base * gamma^(number of milestones reached), as torch's MultiStepLR
  kCosine,    // from base to final along half a cosine, as torch's CosineAnnealingLR
  kPoly,      // base * (share of the job that is left)^power, as torch's PolynomialLR
};

// What a larger batch does to the rate (Goyal et al., "Accurate, Large Minibatch SGD", 2017, scale
// linearly; Krizhevsky, "One weird trick", 2014, derives the square root).
enum class RateScaling {
  kNone,
  kLinear,  // times global batch / reference batch
  kSqrt,    // times the square root of that
};

// Everything is counted in optimizer steps; multiply epochs by the steps of an epoch.
struct RecipeOptions {
  Schedule schedule = Schedule::kConstant;
  double base = 0.1;  // Learning rate after warm-up.
  // ScaleRate() applies these two to `base`.
  RateScaling scaling = RateScaling::kNone;
  int64_t reference_batch = 256;
  // kCosine, kPoly: the step at which `final`, or 0, is reached. Must be > warm-up.
  int64_t total_steps = 0;
  double final = 0.0;               // kCosine: the rate at and after total_steps.
  std::vector<int64_t> milestones;  // kStep: increasing steps at which the rate drops.
  // kStep: instead, for FitRecipe(), increasing numbers of passes over the data.
  std::vector<int64_t> milestone_epochs;
  double gamma = 0.1;  // kStep: the factor of each drop.
  double power = 1;    // kPoly
  // The first warmup_steps steps rise linearly: step s of w uses (s + 1) / w of the rate that the
  // schedule has at that step, so step w - 1 is the first at full rate. Under kCosine and kPoly the
  // curve spans only the steps after warm-up.
  int64_t warmup_steps = 0;
  int64_t warmup_epochs = 0;  // instead, for FitRecipe(): passes over the data
  // Where the rise begins, 0 to 1: step s of w then uses start + (1 - start) s / w of the rate, as
  // torch's LinearLR with start_factor and total_iters, so that step w is the first at full rate.
  absl::optional<double> warmup_start;
};

// OK if LearningRate() may be called with `options`.
//
// Errors: INVALID_ARGUMENT, naming the worker's flag, if a rate or factor is negative or not
// finite, a count is negative, milestones do not increase, a warm-up begins above the full rate, or
// a schedule that ends with the job ends before its warm-up.
absl::Status ValidateRecipe(const RecipeOptions& options);

// The recipe of a job of `steps` steps, `steps_per_epoch` of which are a pass over the data: a
// cosine ends with the job, and milestones and warm-up in epochs have become steps.
//
// Errors: those of ValidateRecipe() for what comes of it; INVALID_ARGUMENT, naming the worker's
// flag, for a schedule that lacks what it needs (kStep its milestones, of which none may lie beyond
// the job's end). What only another schedule knows is passed over.
absl::StatusOr<RecipeOptions> FitRecipe(const RecipeOptions& options, int64_t steps,
                                        int64_t steps_per_epoch);

// Reads `words`, all of them steps ("100", "200") or all of them epochs ("30e", "60e"), into one of
// the recipe's two lists. Errors: INVALID_ARGUMENT naming --lr_milestones for anything else.
absl::Status ParseMilestones(const std::vector<std::string>& words, RecipeOptions* recipe);

// Reads "500" (steps) or "5e" (epochs) into the recipe's warm-up; an empty word leaves it as it is.
// Errors: INVALID_ARGUMENT naming --lr_warmup for anything else, and for a recipe that has one.
absl::Status ParseWarmUp(absl::string_view word, RecipeOptions* recipe);

// The recipe with `base` for steps of `global_batch` samples, of all workers and micro-batches
// together; `final` stays. Errors: INVALID_ARGUMENT naming the worker's flag.
absl::StatusOr<RecipeOptions> ScaleRate(const RecipeOptions& options, int64_t global_batch);

// The rate that step `step` (0 for the job's first) must use. Has the same bits on every host,
// whose C libraries may differ (core/base/portable_math.h): each rank computes it, and all must
// have the same. Thread-safe.
double LearningRate(const RecipeOptions& options, int64_t step);

// `constant`, `step`, `cosine` or `poly`. Errors: INVALID_ARGUMENT for another name, with these.
absl::StatusOr<Schedule> ParseSchedule(absl::string_view name);

// `none`, `linear` or `sqrt`. Errors: as ParseSchedule().
absl::StatusOr<RateScaling> ParseRateScaling(absl::string_view name);

// How many batches make a step, when gradients of several are added up before the optimizer runs.

// Arithmetic without state. A step takes `per_step` batches, and the last step of an epoch what is
// left of it: no step has batches of two epochs.
struct Accumulation {
  int64_t share = 0;       // samples of a worker in an epoch
  int64_t batch_size = 1;  // of all batches but the epoch's last
  int64_t per_step = 1;

  int64_t BatchesFrom(int64_t position) const {
    return (share - position + batch_size - 1) / batch_size;
  }

  int64_t StepsPerEpoch() const { return (BatchesFrom(0) + per_step - 1) / per_step; }

  // Batches of the step whose first batch begins at `position` of the worker's share of an epoch.
  int64_t BatchesOfStepAt(int64_t position) const {
    return std::min(per_step, BatchesFrom(position));
  }
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_RECIPE_H_
