#include "worker/train/weight_average.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "c10/core/GradMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Model> NewModel(uint64_t seed, const std::string& name = "mlp") {
  ModelOptions options;
  options.name = name;
  options.seed = seed;
  return CreateModel(options).value();
}

// Everything in `model` becomes `value`.
void Fill(Model& model, double value) {
  c10::NoGradGuard no_grad;
  for (const at::Tensor& tensor : model.parameters()) tensor.fill_(value);
  for (const at::Tensor& tensor : model.buffers()) tensor.fill_(value);
}

TEST(WeightAverageTest, FollowsTheFormulaOfItsWarmUp) {
  const std::shared_ptr<Model> model = NewModel(0, "resnet18");
  WeightAverage average(/*decay=*/0.15);
  Fill(*model, 1);
  ASSERT_TRUE(average.Begin(*model).ok());
  Fill(*model, 3);
  ASSERT_TRUE(average.Update(*model).ok());  // d = 1/10
  double expected = 0.1 * 1 + 0.9 * 3;
  EXPECT_NEAR(average.tensors()[0].mean().item<float>(), expected, 1e-6);
  Fill(*model, 7);
  ASSERT_TRUE(average.Update(*model).ok());  // d = 0.15, below 2/11
  expected = 0.15 * expected + 0.85 * 7;
  for (const auto& [name, tensor] : average.Export()) {
    const double value = tensor.to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(value, tensor.is_floating_point() ? expected : 7, 1e-5) << name;
  }
  EXPECT_EQ(average.updates(), 2);
}

TEST(WeightAverageTest, SwapsPlacesWithTheModelAndBack) {
  const std::shared_ptr<Model> model = NewModel(1);
  WeightAverage average(0.9);
  Fill(*model, 1);
  ASSERT_TRUE(average.Begin(*model).ok());
  Fill(*model, 2);
  const void* memory = model->parameters()[0].data_ptr();
  ASSERT_TRUE(average.Swap(*model).ok());
  EXPECT_EQ(model->parameters()[0].data_ptr(), memory);
  EXPECT_EQ(model->parameters()[0].max().item<float>(), 1);
  EXPECT_EQ(average.tensors()[0].max().item<float>(), 2);
  ASSERT_TRUE(average.Swap(*model).ok());
  EXPECT_EQ(model->parameters()[0].max().item<float>(), 2);
}

TEST(WeightAverageTest, GoesOnWithTheSameBitsAfterAnImport) {
  const std::shared_ptr<Model> first = NewModel(1);
  const std::shared_ptr<Model> second = NewModel(2);
  WeightAverage through(0.9), before(0.9), after(0.9);
  ASSERT_TRUE(through.Begin(*first).ok());
  ASSERT_TRUE(before.Begin(*first).ok());
  ASSERT_TRUE(through.Update(*second).ok());
  ASSERT_TRUE(before.Update(*second).ok());
  ASSERT_TRUE(after.Begin(*second).ok());
  ASSERT_TRUE(after.Import(before.Export(), before.updates()).ok());
  ASSERT_TRUE(through.Update(*first).ok());
  ASSERT_TRUE(after.Update(*first).ok());
  for (size_t i = 0; i < through.tensors().size(); ++i) {
    EXPECT_TRUE(at::equal(through.tensors()[i], after.tensors()[i]));
  }
}

TEST(WeightAverageTest, WhatDoesNotFitIsNamedAndChangesNothing) {
  WeightAverage average(0.9);
  ASSERT_TRUE(average.Begin(*NewModel(1)).ok());
  std::map<std::string, at::Tensor> tensors = average.Export();
  tensors["extra"] = at::zeros({1});
  EXPECT_THAT(average.Import(tensors, 1).message(), HasSubstr("extra"));
  tensors.erase("extra");
  tensors["fc1.bias"] = at::zeros({1});
  EXPECT_THAT(average.Import(tensors, 1).message(), HasSubstr("fc1.bias"));
  tensors.erase("fc1.bias");
  EXPECT_THAT(average.Import(tensors, 1).message(), HasSubstr("fc1.bias"));
  EXPECT_EQ(average.updates(), 0);
}

}  // namespace
}  // namespace gradsync
