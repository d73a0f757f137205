#include "core/optim/partial_updates.h"

#include <cmath>
#include <vector>

#include "core/optim/range_optimizer.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// A parameter of 1 after `steps` steps with gradient `gradient`, each of `parts` partial updates.
double Train(OptimizerKind kind, OptimizerGroup group, float gradient, int steps, int parts) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.groups = {group};
  RangeOptimizer optimizer(PartialUpdateSpec(spec, parts), {0, 1}, {{{0, 1}, 0}});
  float param = 1;
  const float partial = gradient / static_cast<float>(parts);
  for (int i = 1; i <= steps * parts; ++i) optimizer.Apply(&param, &partial, 0.001, i);
  return param;
}

double RelativeDifference(OptimizerKind kind, const OptimizerGroup& group, float gradient,
                          int steps) {
  const double whole = Train(kind, group, gradient, steps, 1) - 1;
  const double partial = Train(kind, group, gradient, steps, 4) - 1;
  return std::abs(partial - whole) / std::abs(whole);
}

TEST(PartialUpdatesTest, OnePartIsTheOptimizerItself) {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdam;
  spec.groups.resize(2);
  spec.groups[1].weight_decay = 0.1;
  EXPECT_EQ(PartialUpdateSpec(spec, 1), spec);
}

TEST(PartialUpdatesTest, FourPartsMoveAParameterAsFarAsOneStep) {
  OptimizerGroup plain;
  EXPECT_LT(RelativeDifference(OptimizerKind::kSgd, plain, 3, 100), 1e-4);
  OptimizerGroup decay;
  decay.weight_decay = 0.5;
  EXPECT_LT(RelativeDifference(OptimizerKind::kSgd, decay, 0, 100), 1e-2);
  EXPECT_LT(RelativeDifference(OptimizerKind::kAdamW, decay, 0, 100), 1e-2);
  EXPECT_LT(RelativeDifference(OptimizerKind::kAdam, decay, 0, 100), 1e-2);
  EXPECT_LT(RelativeDifference(OptimizerKind::kAdam, plain, 3, 100), 1e-2);
  // Where eps decides, too.
  EXPECT_LT(RelativeDifference(OptimizerKind::kAdam, plain, 1e-8f, 100), 1e-2);
  OptimizerGroup momentum;
  momentum.momentum = 0.9;
  EXPECT_LT(RelativeDifference(OptimizerKind::kSgd, momentum, 3, 2000), 1e-2);
}

}  // namespace
}  // namespace gradsync
