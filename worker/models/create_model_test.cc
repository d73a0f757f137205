#include "worker/models/create_model.h"

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/string_view.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/dropout.h"
#include "worker/models/loss.h"
#include "worker/models/model.h"
#include "worker/models/model_options.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

std::shared_ptr<Model> Create(const std::string& name, const std::string& stem = "imagenet",
                              uint64_t seed = 0) {
  ModelOptions options;
  options.name = name;
  options.stem = stem;
  options.seed = seed;
  return CreateModel(options).value();
}

int64_t Parameters(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& p : model.parameters()) count += p.numel();
  return count;
}

std::vector<std::string> Names(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  return tensors.keys();
}

bool SameParameters(const Model& a, const Model& b) {
  const auto pa = a.parameters(), pb = b.parameters();
  if (pa.size() != pb.size()) return false;
  for (size_t i = 0; i < pa.size(); ++i) {
    if (!at::equal(pa[i], pb[i])) return false;
  }
  return true;
}

// Of which building one takes seconds; resnet_python_test compares them with torchvision's.
bool Large(const ModelEntry& entry) {
  return entry.family == ModelFamily::kVgg ||
         (entry.family == ModelFamily::kResNet && entry.name != absl::string_view("resnet18") &&
          entry.name != absl::string_view("resnet50"));
}

TEST(CreateModelTest, ParameterCountsAreTorchvisions) {
  EXPECT_EQ(Parameters(*Create("resnet18")), 11181642);
  EXPECT_EQ(Parameters(*Create("resnet50")), 23528522);
  EXPECT_EQ(Parameters(*Create("resnet18", "cifar")), 11181642 - 64 * 3 * (49 - 9));
  EXPECT_EQ(Parameters(*Create("mlp")), 3072 * 32 + 32 + 32 * 10 + 10);
}

TEST(CreateModelTest, SizesOfTheGptAreTheOptions) {
  ModelOptions options;
  options.name = "gpt";
  options.classes = 11;
  options.gpt_width = 8;
  options.gpt_layers = 2;
  options.gpt_heads = 2;
  options.gpt_context = 5;
  const auto model = CreateModel(options).value();
  const int64_t layer = 4 * 8 + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8);
  EXPECT_EQ(Parameters(*model), 11 * 8 + 5 * 8 + 2 * layer + 2 * 8 + 11 * 8);
  EXPECT_EQ(model->forward(at::zeros({3, 5}, at::kLong)).sizes(), (at::IntArrayRef{3, 5, 11}));
  EXPECT_EQ(model->forward(at::zeros({1, 1}, at::kLong)).sizes(), (at::IntArrayRef{1, 1, 11}));
  EXPECT_THROW(model->forward(at::zeros({1, 6}, at::kLong)), c10::Error);
}

// --dropout of the ViT dropped attention weights, which torchvision's `dropout` does not, and left out
// the embedding and the MLP's inner values.
TEST(CreateModelTest, TheVitDropsWhereTorchvisionDoes) {
  ModelOptions options;
  options.name = "vit_s_16";
  options.dropout = 0.1;
  const auto model = CreateModel(options).value();
  std::vector<std::string> expected = {"encoder.dropout"};
  for (int i = 0; i < 12; ++i) {
    const std::string layer = "encoder.layers.encoder_layer_" + std::to_string(i);
    for (const char* name : {".dropout", ".mlp.2", ".mlp.4"}) expected.push_back(layer + name);
  }
  std::vector<std::string> found;
  for (const auto& module : model->named_modules("", /*include_self=*/false)) {
    const auto* const dropout = module.value()->as<Dropout>();
    if (dropout != nullptr && dropout->probability() > 0) found.push_back(module.key());
  }
  EXPECT_THAT(found, UnorderedElementsAreArray(expected));
  model->BeginStep(/*seed=*/7);
  const at::Tensor images = at::ones({2, 3, 32, 32});
  EXPECT_EQ(model->forward(images).sizes(), (at::IntArrayRef{2, 10}));
}

// A position's logits depend on what came before it and on nothing behind it.
TEST(CreateModelTest, TheGptSeesNoLaterToken) {
  ModelOptions options;
  options.name = "gpt";
  options.classes = 7;
  options.gpt_width = 8;
  options.gpt_layers = 2;
  options.gpt_heads = 2;
  options.gpt_context = 6;
  const auto model = CreateModel(options).value();
  model->eval();
  const at::Tensor tokens = at::zeros({1, 6}, at::kLong);
  const at::Tensor before = model->forward(tokens);
  tokens[0][3] = 5;
  const at::Tensor after = model->forward(tokens);
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 3), after.narrow(1, 0, 3)));
  for (int64_t t = 3; t < 6; ++t) EXPECT_FALSE(at::equal(before[0][t], after[0][t])) << t;
}

TEST(CreateModelTest, EveryParameterBelongsToOneBlock) {
  for (const ModelEntry& entry : Models()) {
    if (Large(entry)) continue;
    const auto model = Create(entry.name);
    std::vector<std::string> of_blocks;
    for (const ModelBlock& block : model->blocks()) {
      for (const std::string& name : model->ParametersOf(block)) of_blocks.push_back(name);
    }
    EXPECT_THAT(of_blocks, UnorderedElementsAreArray(Names(model->named_parameters())))
        << entry.name;
  }
}

TEST(CreateModelTest, NamesStartAndEndAsTorchvisions) {
  const auto names = Names(Create("resnet18")->named_parameters());
  ASSERT_EQ(names.size(), 62);
  EXPECT_EQ(names[0], "conv1.weight");
  EXPECT_EQ(names[1], "bn1.weight");
  EXPECT_EQ(names[2], "bn1.bias");
  EXPECT_EQ(names[3], "layer1.0.conv1.weight");
  EXPECT_EQ(names[21], "layer2.0.downsample.0.weight");
  EXPECT_EQ(names[22], "layer2.0.downsample.1.weight");
  EXPECT_EQ(names[61], "fc.bias");
  EXPECT_EQ(Names(Create("resnet50")->named_parameters()).size(), 161);
  const auto buffers = Names(Create("resnet18")->named_buffers());
  ASSERT_EQ(buffers.size(), 60);
  EXPECT_EQ(buffers[0], "bn1.running_mean");
  EXPECT_EQ(buffers[1], "bn1.running_var");
  EXPECT_EQ(buffers[2], "bn1.num_batches_tracked");
}

TEST(CreateModelTest, HiddenLayersOfTheMlpAreConfigurable) {
  ModelOptions options;
  options.name = "mlp";
  options.hidden = {5, 7};
  options.classes = 3;
  const auto model = CreateModel(options).value();
  EXPECT_THAT(Names(model->named_parameters()), ElementsAre("fc1.weight", "fc1.bias", "fc2.weight",
                                                            "fc2.bias", "fc3.weight", "fc3.bias"));
  EXPECT_EQ(model->forward(at::zeros({2, 3, 32, 32})).sizes(), (at::IntArrayRef{2, 3}));
  options.hidden = {};
  EXPECT_EQ(Parameters(*CreateModel(options).value()), 3072 * 3 + 3);
}

TEST(CreateModelTest, LogitsHaveOneRowPerImage) {
  const at::Tensor images = at::rand({2, 3, 32, 32});
  const at::Tensor copy = images.clone();
  for (const char* stem : {"imagenet", "cifar"}) {
    for (const char* name : {"resnet18", "resnet50", "mlp"}) {
      const auto model = Create(name, stem);
      EXPECT_EQ(model->forward(images).sizes(), (at::IntArrayRef{2, 10})) << name;
      model->eval();
      EXPECT_EQ(model->forward(images.narrow(0, 0, 1)).sizes(), (at::IntArrayRef{1, 10})) << name;
      EXPECT_TRUE(at::equal(images, copy)) << "input was modified";
    }
  }
}

TEST(CreateModelTest, SeedAloneDecidesTheWeights) {
  for (const char* name : {"resnet18", "mlp"}) {
    EXPECT_TRUE(SameParameters(*Create(name, "imagenet", 3), *Create(name, "imagenet", 3)));
    EXPECT_FALSE(SameParameters(*Create(name, "imagenet", 3), *Create(name, "imagenet", 4)));
  }
}

TEST(CreateModelTest, ModelsBuiltByThreadsAtOnceDoNotDisturbEachOther) {
  const auto expected = Create("resnet18", "imagenet", 5);
  std::vector<std::shared_ptr<Model>> models(3);
  std::vector<std::thread> threads;
  for (auto& model : models) {
    threads.emplace_back([&model] { model = Create("resnet18", "imagenet", 5); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& model : models) EXPECT_TRUE(SameParameters(*model, *expected));
}

TEST(CreateModelTest, GlobalGeneratorIsLeftAlone) {
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  Create("resnet18");
  Create("mlp");
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
}

TEST(CreateModelTest, GradientReachesEveryParameter) {
  for (const char* name : {"resnet18", "resnet50", "mlp"}) {
    const auto model = Create(name);
    const at::Tensor labels = at::ones({4}, at::kLong);
    CrossEntropy(model->forward(at::rand({4, 3, 64, 64}).narrow(2, 0, 32).narrow(3, 0, 32)), labels)
        .backward();
    for (const auto& p : model->named_parameters()) {
      EXPECT_TRUE(p.value().grad().defined()) << name << " " << p.key();
    }
  }
}

TEST(CreateModelTest, TrainingCountsBatchesAndEvaluationDoesNot) {
  const auto model = Create("resnet18");
  const at::Tensor images = at::rand({2, 3, 32, 32});
  const auto buffers = model->named_buffers();
  model->forward(images);
  model->forward(images);
  EXPECT_EQ(buffers["bn1.num_batches_tracked"].item<int64_t>(), 2);
  const at::Tensor mean = buffers["bn1.running_mean"].clone();
  model->eval();
  model->forward(images);
  EXPECT_EQ(buffers["bn1.num_batches_tracked"].item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(buffers["bn1.running_mean"], mean));
}

TEST(CreateModelTest, TrainingOnOneValuePerChannelIsRefusedAsInPython) {
  const auto model = Create("resnet18");
  try {
    model->forward(at::rand({1, 3, 32, 32}));
    FAIL() << "expected c10::Error";
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what_without_backtrace(), HasSubstr("more than 1 value per channel"));
  }
}

TEST(CreateModelTest, BadOptionsAreNamedWithWhatExists) {
  auto error = [](ModelOptions options) {
    const absl::Status status = CreateModel(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  ModelOptions options;
  options.name = "resnet19";
  EXPECT_THAT(error(options), AllOf(HasSubstr("'resnet19': expected resnet18, resnet34, "),
                                    HasSubstr("vgg16_bn, vit_s_16, gpt or mlp")));
  options.name = "vit_s_16";
  options.image_size = 40;
  EXPECT_THAT(error(options), AllOf(HasSubstr("--model: expected one for --data with images of 40"),
                                    HasSubstr("a multiple of 16")));
  options.name = "gpt";
  options.gpt_heads = 5;
  EXPECT_THAT(error(options), HasSubstr("--gpt_width: expected a multiple of --gpt_heads=5"));
  options.gpt_layers = 0;
  EXPECT_THAT(error(options), HasSubstr("--gpt_layers: expected at least 1, found \"0\""));
  options.dropout = 1;
  EXPECT_THAT(error(options), HasSubstr("--dropout: expected at least 0 and less than 1"));
  options.dropout.reset();
  options.name = "mlp";
  options.stem = "vgg";
  EXPECT_THAT(error(options), HasSubstr("'vgg': expected imagenet or cifar"));
  options.stem = "cifar";
  options.classes = -1;
  EXPECT_THAT(error(options), HasSubstr("found -1"));
  options.classes = 10;
  options.hidden = {-1};
  EXPECT_THAT(error(options), HasSubstr("found -1"));
}

}  // namespace
}  // namespace gradsync
