#include "core/optim/range_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int64_t kSize = 301;
// Two groups, padding at [37, 48) and behind 290.
const std::vector<GroupRange>& Layout() {
  static const auto* layout =
      new std::vector<GroupRange>{{{0, 37}, 0}, {{48, 200}, 1}, {{200, 201}, 0}, {{201, 290}, 1}};
  return *layout;
}

std::vector<float> Values(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kSize);
  for (float& x : values) x = normal(random);
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty()) return b.empty();
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// An optimizer per piece of [0, kSize), with the pieces' parts of Layout().
struct Cut {
  Cut(const OptimizerSpec& spec, std::vector<int64_t> bounds_in) : bounds(std::move(bounds_in)) {
    for (size_t piece = 0; piece + 1 < bounds.size(); ++piece) {
      const int64_t from = bounds[piece], to = bounds[piece + 1];
      std::vector<GroupRange> groups;
      for (const GroupRange& g : Layout()) {
        const int64_t begin = std::max(g.range.begin, from), end = std::min(g.range.end, to);
        if (begin < end) groups.push_back({{begin, end}, g.group});
      }
      pieces.emplace_back(spec, ElementRange{from, to}, groups);
    }
  }

  void Apply(std::vector<float>* param, const std::vector<float>& grad, double lr, int64_t step) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].Apply(param->data() + bounds[i], grad.data() + bounds[i], lr, step);
    }
  }

  std::vector<float> Slot(int index) const {
    std::vector<float> all;
    for (const RangeOptimizer& piece : pieces) {
      all.insert(all.end(), piece.slot(index).begin(), piece.slot(index).end());
    }
    return all;
  }

  void Import(int index, const std::vector<float>& values) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::copy(values.begin() + bounds[i], values.begin() + bounds[i + 1],
                pieces[i].mutable_slot(index).begin());
    }
  }

  std::vector<int64_t> bounds;
  std::vector<RangeOptimizer> pieces;
};

OptimizerSpec Spec(OptimizerKind kind) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.groups.resize(2);
  spec.groups[0].momentum = 0.9;
  spec.groups[0].dampening = 0.2;
  spec.groups[0].weight_decay = 1e-2;
  spec.groups[0].lr_scale = 0.5;
  spec.groups[1].momentum = 0.8;
  spec.groups[1].nesterov = true;
  spec.groups[1].beta1 = 0.8;
  return spec;
}

class RangeOptimizerTest : public ::testing::TestWithParam<OptimizerKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, RangeOptimizerTest,
                         ::testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam,
                                           OptimizerKind::kAdamW),
                         [](const ::testing::TestParamInfo<OptimizerKind>& info) {
                           return OptimizerKindName(info.param);
                         });

TEST_P(RangeOptimizerTest, BitsDoNotDependOnWhereRangesAreCut) {
  Cut whole(Spec(GetParam()), {0, kSize});
  std::vector<float> expected = Values(1);
  for (int step = 1; step <= 20; ++step)
    whole.Apply(&expected, Values(100 + step), 0.1 / step, step);
  std::vector<std::vector<int64_t>> cuts = {{0, 0, 1, 150, 151, kSize}, {0, 40, 45, 199, kSize}};
  cuts.emplace_back();
  for (int64_t i = 0; i <= kSize; ++i) cuts.back().push_back(i);
  for (const std::vector<int64_t>& bounds : cuts) {
    Cut cut(Spec(GetParam()), bounds);
    std::vector<float> param = Values(1);
    for (int step = 1; step <= 20; ++step) cut.Apply(&param, Values(100 + step), 0.1 / step, step);
    EXPECT_TRUE(SameBits(param, expected));
    for (size_t slot = 0; slot < SlotNames(Spec(GetParam())).size(); ++slot) {
      EXPECT_TRUE(SameBits(cut.Slot(slot), whole.Slot(slot)));
    }
  }
}

TEST_P(RangeOptimizerTest, ImportedStateGoesOnAsIfNeverExported) {
  const std::vector<std::string> slots = SlotNames(Spec(GetParam()));
  Cut first(Spec(GetParam()), {0, 33, 250, kSize});
  std::vector<float> expected = Values(1);
  for (int step = 1; step <= 3; ++step) first.Apply(&expected, Values(100 + step), 0.1, step);
  std::vector<float> param = expected;
  Cut second(Spec(GetParam()), {0, 100, kSize});
  for (size_t slot = 0; slot < slots.size(); ++slot) second.Import(slot, first.Slot(slot));
  for (int step = 4; step <= 8; ++step) {
    first.Apply(&expected, Values(100 + step), 0.1, step);
    second.Apply(&param, Values(100 + step), 0.1, step);
  }
  EXPECT_TRUE(SameBits(param, expected));
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    EXPECT_TRUE(SameBits(second.Slot(slot), first.Slot(slot)));
  }
}

TEST_P(RangeOptimizerTest, PaddingIsNeverTouched) {
  RangeOptimizer optimizer(Spec(GetParam()), {0, kSize}, Layout());
  const std::vector<float> before = Values(1);
  std::vector<float> param = before;
  optimizer.Apply(param.data(), Values(2).data(), 0.1, 1);
  for (int64_t i = 0; i < kSize; ++i) {
    const bool padding = (i >= 37 && i < 48) || i >= 290;
    EXPECT_EQ(param[i] == before[i], padding) << i;
    if (padding) {
      EXPECT_EQ(optimizer.slot(0)[i], 0.0f) << i;
    }
  }
}

TEST_P(RangeOptimizerTest, StateIsAllocatedAtTheFirstStepAndCanBeForgotten) {
  RangeOptimizer optimizer(Spec(GetParam()), {0, kSize}, Layout());
  std::vector<float> expected = Values(1), param = expected;
  EXPECT_FALSE(optimizer.has_state());
  EXPECT_TRUE(optimizer.slot(0).empty());
  optimizer.Apply(expected.data(), Values(2).data(), 0.1, 1);
  EXPECT_TRUE(optimizer.has_state());
  EXPECT_EQ(optimizer.slot(0).size(), static_cast<size_t>(kSize));
  optimizer.ClearState();
  EXPECT_FALSE(optimizer.has_state());
  optimizer.Apply(param.data(), Values(2).data(), 0.1, 1);
  EXPECT_TRUE(SameBits(param, expected));
}

TEST(RangeOptimizerSgdTest, MomentumStartsAsTheGradientOnlyWithoutState) {
  const std::vector<GroupRange> all = {{{0, 1}, 0}};
  RangeOptimizer fresh(Spec(OptimizerKind::kSgd), {0, 1}, all);
  RangeOptimizer imported(Spec(OptimizerKind::kSgd), {0, 1}, all);
  imported.mutable_slot(0)[0] = 0.0f;
  float param = 0, grad = 1;
  fresh.Apply(&param, &grad, 0.1, 7);
  EXPECT_EQ(fresh.slot(0)[0], 1.0f);
  param = 0;
  imported.Apply(&param, &grad, 0.1, 1);
  EXPECT_EQ(imported.slot(0)[0], 0.8f);
}

TEST(RangeOptimizerSgdTest, WithoutMomentumThereAreNoSlots) {
  OptimizerSpec spec;
  spec.groups.resize(1);
  RangeOptimizer optimizer(spec, {0, 2}, {{{0, 2}, 0}});
  EXPECT_TRUE(optimizer.slot_names().empty());
  float param[] = {1, 2}, grad[] = {1, 2};
  optimizer.Apply(param, grad, 0.5, 1);
  EXPECT_EQ(param[0], 0.5f);
  EXPECT_EQ(param[1], 1.0f);
}

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
