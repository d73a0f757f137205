#include "worker/train/decay_groups.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<Model> NewModel(const std::string& name) {
  ModelOptions options;
  options.name = name;
  return CreateModel(options).value();
}

OptimizerSpec Decaying() {
  OptimizerSpec spec;
  spec.groups.emplace_back();
  spec.groups[0].momentum = 0.9;
  spec.groups[0].weight_decay = 0.1;
  return spec;
}

// Names of the parameters of `model` that `words` leave without decay.
std::set<std::string> Excluded(const std::string& model, const std::vector<std::string>& words) {
  const std::shared_ptr<Model> module = NewModel(model);
  OptimizerSpec spec = Decaying();
  const auto group_of = ExcludeFromDecay(words, *module, &spec).value();
  EXPECT_EQ(spec.groups.size(), 2u);
  EXPECT_EQ(spec.groups[0], Decaying().groups[0]);
  EXPECT_EQ(spec.groups[1].weight_decay, 0);
  EXPECT_EQ(spec.groups[1].momentum, 0.9);
  std::set<std::string> names;
  for (const auto& parameter : module->named_parameters()) {
    TensorSpec tensor;
    tensor.name = parameter.key();
    if (group_of(tensor) == 1) names.insert(tensor.name);
  }
  return names;
}

TEST(DecayGroupsTest, NormsAreFoundByTheirClassWhateverTheyAreCalled) {
  const std::set<std::string> norms = Excluded("resnet18", {"norm"});
  EXPECT_EQ(norms.size(), 40u);  // weight and bias of 20 layers
  EXPECT_EQ(norms.count("bn1.weight"), 1u);
  EXPECT_EQ(norms.count("layer2.0.downsample.1.weight"), 1u);
  EXPECT_EQ(norms.count("layer2.0.downsample.0.weight"), 0u);
  EXPECT_EQ(norms.count("fc.bias"), 0u);
}

TEST(DecayGroupsTest, WordsNameBiasesVectorsOrPatternsAndAddUp) {
  EXPECT_THAT(Excluded("mlp", {"bias"}), ElementsAre("fc1.bias", "fc2.bias"));
  EXPECT_EQ(Excluded("resnet18", {"norm", "bias"}), Excluded("resnet18", {"vectors"}));
  EXPECT_THAT(Excluded("mlp", {"fc2.weight"}), ElementsAre("fc2.weight"));
  EXPECT_THAT(Excluded("mlp", {"*2*", "fc1.b*s"}),
              ElementsAre("fc1.bias", "fc2.bias", "fc2.weight"));
  EXPECT_EQ(Excluded("mlp", {"*"}).size(), 4u);
}

TEST(DecayGroupsTest, WithoutWordsNothingChanges) {
  OptimizerSpec spec = Decaying();
  EXPECT_EQ(ExcludeFromDecay({}, *NewModel("mlp"), &spec).value(), nullptr);
  EXPECT_EQ(spec, Decaying());
}

TEST(DecayGroupsTest, AWordThatNothingFitsIsNamed) {
  for (const std::string word : {"norm", "fc3.weight", "fc1", "", "weight", "*.gamma"}) {
    OptimizerSpec spec = Decaying();
    EXPECT_THAT(
        std::string(ExcludeFromDecay({"bias", word}, *NewModel("mlp"), &spec).status().message()),
        AllOf(HasSubstr("--no_weight_decay"), HasSubstr("\"" + word + "\"")));
  }
}

}  // namespace
}  // namespace gradsync
