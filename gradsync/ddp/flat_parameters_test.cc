#include "gradsync/ddp/flat_parameters.h"

#include <memory>

#include "ATen/ops/ones_like.h"
#include "core/base/sha256.h"
#include "gmock/gmock.h"
#include "gradsync/ddp/tensor_over.h"
#include "gradsync/ddp/tiny_module.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Bound {
  std::vector<GradBucket> buckets;
  FlatParameters parameters;
};

Bound BindOrDie(const torch::nn::Module& module, const std::vector<std::vector<int>>& buckets) {
  const Plan plan = PlanFor(module, buckets).value();
  Bound bound;
  bound.buckets = *AllocateBuckets(plan);
  bound.parameters = FlatParameters::Bind(module, plan, bound.buckets).value();
  return bound;
}

struct OneParameter : torch::nn::Module {
  explicit OneParameter(at::Tensor value) {
    weight = register_parameter("weight", std::move(value));
  }
  at::Tensor weight;
};

TEST(FlatParametersTest, BindingKeepsValuesAndPutsThemIntoBuckets) {
  TinyModule module;
  const at::Tensor before = module.last_weight.detach().clone();
  const Bound bound = BindOrDie(module, {{3, 2}, {1, 0}});
  EXPECT_TRUE(module.last_weight.equal(before));
  EXPECT_EQ(module.last_weight.data_ptr(), bound.buckets[0].param.data);
  EXPECT_TRUE(module.last_weight.is_leaf());
  EXPECT_TRUE(module.last_weight.requires_grad());

  TensorOver(bound.buckets[0].param).zero_();
  EXPECT_EQ(module.last_weight.abs().sum().item<float>(), 0);
  EXPECT_EQ(module.scale.abs().sum().item<float>(), 0);
  EXPECT_NE(module.first_weight.abs().sum().item<float>(), 0);
}

TEST(FlatParametersTest, GradientsAreViewsThatAutogradAddsTo) {
  TinyModule module;
  const Bound bound = BindOrDie(module, {{3, 2}, {1, 0}});
  module.Loss(at::ones({2, 4})).backward();
  EXPECT_TRUE(bound.parameters.CheckViews().ok());
  EXPECT_TRUE(
      TensorOver(bound.buckets[0].grad).slice(0, 0, 24).equal(module.last_weight.grad().flatten()));
  EXPECT_NE(module.last_weight.grad().abs().sum().item<float>(), 0);
}

TEST(FlatParametersTest, ChannelsLastStridesStay) {
  OneParameter module(at::randn({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor before = module.weight.detach().clone();
  const Bound bound = BindOrDie(module, {{0}});
  EXPECT_TRUE(module.weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(module.weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(module.weight.equal(before));
}

TEST(FlatParametersTest, AGradientSetToNoneIsNamed) {
  TinyModule module;
  const Bound bound = BindOrDie(module, {{3, 2}, {1, 0}});
  module.scale.mutable_grad() = at::Tensor();
  const absl::Status status = bound.parameters.CheckViews();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("scale"), HasSubstr("removed")));
}

TEST(FlatParametersTest, AReplacedGradientIsNamed) {
  TinyModule module;
  const Bound bound = BindOrDie(module, {{3, 2}, {1, 0}});
  module.first_bias.mutable_grad() = at::zeros({8});
  EXPECT_THAT(bound.parameters.CheckViews().message(), HasSubstr("first_bias"));
}

TEST(FlatParametersTest, AModuleThatWasConvertedIsNamed) {
  TinyModule module;
  const Bound bound = BindOrDie(module, {{3, 2}, {1, 0}});
  module.to(at::kDouble);
  const absl::Status status = bound.parameters.CheckViews();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("parameter first_weight no longer"));
}

TEST(FlatParametersTest, OtherThanFp32IsRefusedByName) {
  const OneParameter module(at::randn({3}).to(at::kDouble));
  const absl::Status status = TensorSpecsOf(module).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("weight"), HasSubstr("Double")));
}

TEST(FlatParametersTest, TiedWeightsComeOnceAndFrozenOnesNotAtAll) {
  TinyModule module;
  module.register_parameter("tied", module.scale);
  module.first_bias.set_requires_grad(false);
  const auto specs = TensorSpecsOf(module).value();
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[0].name, "first_weight");
  EXPECT_EQ(specs[1].name, "scale");
  EXPECT_EQ(specs[2].name, "last_weight");
}

TEST(FlatParametersTest, MemorySharedByTwoTensorsIsRefused) {
  TinyModule module;
  module.register_parameter("alias", module.scale.detach());
  const absl::Status status = TensorSpecsOf(module).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("scale"), HasSubstr("alias")));
}

TEST(FlatParametersTest, APlanForAnotherModuleIsRefusedAndNothingChanges) {
  TinyModule module;
  const OneParameter other(at::randn({8, 5}));
  const Plan plan = PlanFor(other, {{0}}).value();
  const void* before = module.first_weight.data_ptr();
  const absl::Status status = FlatParameters::Bind(module, plan, *AllocateBuckets(plan)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("first_weight"), HasSubstr("weight sizes [8,5]")));
  EXPECT_EQ(module.first_weight.data_ptr(), before);
}

TEST(FlatParametersTest, TheHashDoesNotDependOnBucketsOrMemoryFormat) {
  const at::Tensor values = at::randn({4, 3, 2, 2});
  OneParameter plain(values.clone());
  OneParameter channels_last(values.contiguous(at::MemoryFormat::ChannelsLast));
  const Bound a = BindOrDie(plain, {{0}});
  const Bound b = BindOrDie(channels_last, {{0}});
  EXPECT_EQ(a.parameters.Sha256(), b.parameters.Sha256());
  EXPECT_EQ(a.parameters.Sha256(),
            Sha256Hex({static_cast<const char*>(values.data_ptr()), values.nbytes()}));
}

}  // namespace
}  // namespace gradsync
