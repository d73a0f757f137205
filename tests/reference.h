// The oracle: what n workers must end with, computed by one thread from the definitions in
// core/plan/stripes.h and nothing else.

#ifndef GRADSYNC_TESTS_REFERENCE_H_
#define GRADSYNC_TESTS_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"

namespace gradsync {

// One vector of BucketPlan::numel floats per bucket.
using FlatValues = std::vector<std::vector<float>>;

// Deterministic values in about [-1, 1] for every element of every bucket, padding zero: a function
// of seed alone.
FlatValues RandomValues(const Plan& plan, uint64_t seed);

// The mean over ranks of `per_rank`, folded in the plan's order, times 1/n, times
// `inverse_loss_scale`.
FlatValues ReferenceMean(const Plan& plan, const std::vector<FlatValues>& per_rank,
                         double inverse_loss_scale);

// A whole optimizer in one piece. Scales the mean when `step.max_norm` asks for it, then updates
// `params`.
class ReferenceOptimizer {
 public:
  explicit ReferenceOptimizer(const Plan& plan);
  ~ReferenceOptimizer();

  void Apply(const StepOptions& step, FlatValues mean, FlatValues* params);

  OptimizerState Export() const;
  void Import(const OptimizerState& state);

 private:
  struct Impl;
  const Plan plan_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_REFERENCE_H_
