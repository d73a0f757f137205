// The profiles that the repository has.

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/profiles/step_profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

proto::StepProfile Profile(const std::string& name) {
  const auto profile = ReadStepProfile("benchmarks/profiles/" + name + ".json");
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.value_or(proto::StepProfile());
}

int64_t Parameters(const proto::StepProfile& profile) {
  int64_t parameters = 0;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) parameters += tensor.numel();
  return parameters;
}

// As torchvision and the papers have them.
TEST(ProfilesTest, EachHasTheParametersOfItsArchitecture) {
  EXPECT_EQ(Parameters(Profile("resnet18")), 11181642);
  EXPECT_EQ(Parameters(Profile("resnet50")), 25557032);
  EXPECT_EQ(Parameters(Profile("resnet50_10_classes")), 23528522);
  EXPECT_EQ(Parameters(Profile("vgg16")), 138357544);
  EXPECT_EQ(Parameters(Profile("bert_large")), 335141888);
  constexpr int64_t kWidth = 384, kCut = 12 * kWidth * kWidth + 7 * kWidth, kShared = 6 * kWidth;
  for (int n : {1, 2, 4}) {
    const int64_t parameters = 6 * (kCut / n + kShared) + 2 * 256 * kWidth / n + 258 * kWidth;
    const std::string slices = n == 1 ? "" : absl::StrCat("_tensor", n);
    EXPECT_EQ(Parameters(Profile("gpt" + slices)), parameters);
    if (n == 1) continue;
    EXPECT_EQ(Parameters(Profile("gpt" + slices + "_sequence")), parameters);
  }
}

TEST(ProfilesTest, EachSaysWhereItCameFrom) {
  for (const char* name : {"resnet18", "resnet50", "resnet50_10_classes", "gpt", "gpt_tensor2",
                           "gpt_tensor4", "gpt_tensor2_sequence", "gpt_tensor4_sequence"}) {
    const proto::StepProfile profile = Profile(name);
    EXPECT_EQ(profile.origin(), "measured");
    EXPECT_GT(profile.machine().cores(), 0);
    EXPECT_NE(profile.machine().cpu(), "");
    EXPECT_THAT(profile.command(), testing::HasSubstr("train_bench -- --record="));
    EXPECT_THAT(profile.note(), testing::Not(testing::HasSubstr("WARNING")));
    EXPECT_EQ(CheckHasBlocks(profile), absl::OkStatus());
  }
  for (const char* name : {"vgg16", "bert_large"}) {
    EXPECT_EQ(Profile(name).origin(), "shapes");
    EXPECT_THAT(Profile(name).note(), testing::HasSubstr("derived, not measured"));
  }
}

TEST(ProfilesTest, BackwardCompletesTheLastLayerFirst) {
  EXPECT_THAT(Profile("resnet50").tensors(0).name(), testing::StartsWith("fc."));
  EXPECT_EQ(Profile("resnet50").tensors(160).name(), "conv1.weight");
  EXPECT_THAT(Profile("vgg16").tensors(0).name(), testing::StartsWith("classifier.6"));
  EXPECT_THAT(Profile("bert_large").tensors(390).name(), testing::StartsWith("embeddings.word"));
}

TEST(ProfilesTest, ShapesAreWhatTheirScriptMakes) {
  const std::string folder = testing::TempDir();
  TestProgram script({"benchmarks/profiles/make_shapes.py", folder});
  ASSERT_EQ(script.Finish().code, 0);
  for (const std::string name : {"/vgg16.json", "/bert_large.json"}) {
    EXPECT_EQ(ReadFile(folder + name), ReadFile("benchmarks/profiles" + name));
  }
}

}  // namespace
}  // namespace gradsync
