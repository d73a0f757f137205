#include "core/plan/optimizer_spec.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::string Error(OptimizerKind kind, const OptimizerGroup& group) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.groups = {OptimizerGroup(), group};
  absl::Status status = spec.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(OptimizerSpecTest, DefaultsOfEveryKindAreValid) {
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    OptimizerSpec spec;
    spec.kind = kind;
    EXPECT_EQ(spec.Validate().code(), absl::StatusCode::kInvalidArgument) << "no group";
    spec.groups.resize(3);
    EXPECT_TRUE(spec.Validate().ok());
  }
}

TEST(OptimizerSpecTest, NesterovNeedsMomentumAndNoDampening) {
  OptimizerGroup group;
  group.nesterov = true;
  EXPECT_EQ(Error(OptimizerKind::kSgd, group),
            "optimizer group 1: momentum: expected above 0 with nesterov, found 0");
  group.momentum = 0.9;
  group.dampening = 0.1;
  EXPECT_EQ(Error(OptimizerKind::kSgd, group),
            "optimizer group 1: dampening: expected 0 with nesterov, found 0.1");
}

TEST(OptimizerSpecTest, ConstantsOutOfRangeAreNamed) {
  const auto with = [](double OptimizerGroup::*member, double value) {
    OptimizerGroup group;
    group.*member = value;
    return group;
  };
  const auto names = [](const std::string& error, const char* what) {
    return error.find(what) != std::string::npos;
  };
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
    EXPECT_TRUE(names(Error(kind, with(&OptimizerGroup::lr_scale, -1)), "lr_scale"));
    EXPECT_TRUE(names(Error(kind, with(&OptimizerGroup::lr_scale, NAN)), "lr_scale"));
    EXPECT_TRUE(names(Error(kind, with(&OptimizerGroup::weight_decay, -1)), "weight_decay"));
  }
  const OptimizerKind sgd = OptimizerKind::kSgd, adamw = OptimizerKind::kAdamW;
  EXPECT_TRUE(names(Error(sgd, with(&OptimizerGroup::momentum, -0.1)), "momentum"));
  EXPECT_TRUE(names(Error(sgd, with(&OptimizerGroup::dampening, INFINITY)), "dampening"));
  EXPECT_TRUE(names(Error(adamw, with(&OptimizerGroup::beta1, 1)), "beta1"));
  EXPECT_TRUE(names(Error(adamw, with(&OptimizerGroup::beta2, -0.1)), "beta2"));
  EXPECT_TRUE(names(Error(adamw, with(&OptimizerGroup::eps, NAN)), "eps"));
}

TEST(OptimizerSpecTest, SlotsAreNamedAsInPyTorch) {
  OptimizerSpec spec;
  spec.groups.resize(2);
  EXPECT_TRUE(SlotNames(spec).empty());
  spec.groups[1].momentum = 0.9;
  EXPECT_EQ(SlotNames(spec), std::vector<std::string>{"momentum_buffer"});
  spec.kind = OptimizerKind::kAdam;
  EXPECT_EQ(SlotNames(spec), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  spec.kind = OptimizerKind::kAdamW;
  EXPECT_EQ(SlotNames(spec), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

TEST(OptimizerSpecTest, EqualityCoversKindAndEveryConstant) {
  OptimizerSpec a, b;
  a.groups.resize(1);
  b.groups.resize(1);
  EXPECT_TRUE(a == b);
  b.kind = OptimizerKind::kAdam;
  EXPECT_FALSE(a == b);
  using Group = OptimizerGroup;
  for (double Group::*member : {&Group::lr_scale, &Group::weight_decay, &Group::momentum,
                                &Group::dampening, &Group::beta1, &Group::beta2, &Group::eps}) {
    b = a;
    b.groups[0].*member += 1;
    EXPECT_FALSE(a == b);
  }
  b = a;
  b.groups[0].nesterov = true;
  EXPECT_FALSE(a == b);
}

}  // namespace
}  // namespace gradsync
