// Compares with Debian's python3-torch and python3-torchvision, run by this test, bit by bit.
// Skipped where they are missing or belong to another release of LibTorch.

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "torch/version.h"
#include "worker/models/create_model.h"
#include "worker/models/formula_step.h"
#include "worker/models/model_options.h"

namespace gradsync {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr char kScript[] = "worker/models/testdata/make_resnet_reference.py";
constexpr int kSkip = 77;

struct PythonTensor {
  std::string part, name;
  std::vector<float> values;
};

// Runs the script and reads what it wrote. Empty if Python cannot do it here.
std::vector<PythonTensor> RunPython(const std::string& flags) {
  std::string path = testing::TempDir() + "/raw_XXXXXX";
  EXPECT_GE(mkstemp(path.data()), 0);
  const std::string command = absl::StrCat(kPython, " ", kScript, " --torch=", TORCH_VERSION_MAJOR,
                                           ".", TORCH_VERSION_MINOR, " --raw=", path, " ", flags);
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == kSkip || code == 126 || code == 127) return {};
  EXPECT_EQ(code, 0) << command;

  std::ifstream file(path, std::ios::binary);
  std::vector<PythonTensor> tensors;
  for (std::string text; std::getline(file, text) && !text.empty();) {
    std::istringstream words(text);
    PythonTensor tensor;
    size_t count = 0;
    words >> tensor.part >> tensor.name >> count;
    tensor.values.resize(count);
    tensors.push_back(std::move(tensor));
  }
  for (PythonTensor& tensor : tensors) {
    file.read(reinterpret_cast<char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
  }
  EXPECT_TRUE(file.good()) << path << " is too short";
  std::remove(path.c_str());
  return tensors;
}

// What the script writes about the shapes of all models; empty if Python cannot do it here.
std::string RunPythonForShapes() {
  const std::string path = testing::TempDir() + "/shapes";
  const std::string command = absl::StrCat(kPython, " ", kScript, " --shapes=", path);
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == kSkip || code == 126 || code == 127) return "";
  EXPECT_EQ(code, 0) << command;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

#define SKIP_WITHOUT_PYTHON(tensors)                                                   \
  if ((tensors).empty()) {                                                             \
    GTEST_SKIP() << kPython << " has no torch " << TORCH_VERSION_MAJOR << "."          \
                 << TORCH_VERSION_MINOR << " with torchvision (its reason is above): " \
                 << "apt-get install python3-torch python3-torchvision";               \
  }

void ExpectEqualBits(const std::string& part, const std::string& name, const at::Tensor& ours,
                     const PythonTensor& python) {
  ASSERT_EQ(part, python.part);
  ASSERT_EQ(name, python.name);
  ASSERT_EQ(ours.numel(), static_cast<int64_t>(python.values.size())) << name;
  const at::Tensor flat = ours.contiguous();
  const float* values = flat.data_ptr<float>();
  int64_t different = 0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    different += std::memcmp(&values[i], &python.values[i], sizeof(float)) != 0;
  }
  EXPECT_EQ(different, 0) << "of " << flat.numel() << " floats of " << part << " " << name;
}

struct Case {
  std::string model, stem;
  int64_t batch, size;
  int threads;
};

class ResNetPythonTest : public testing::TestWithParam<Case> {};

TEST_P(ResNetPythonTest, TrainingStepHasPythonsBitsAtEqualThreadCounts) {
  const Case& c = GetParam();
  const std::vector<PythonTensor> python =
      RunPython(absl::StrCat("--model=", c.model, " --stem=", c.stem, " --batch=", c.batch,
                             " --size=", c.size, " --threads=", c.threads));
  SKIP_WITHOUT_PYTHON(python);
  at::set_num_threads(c.threads);
  ModelOptions options;
  options.name = c.model;
  options.stem = c.stem;
  const auto model = CreateModel(options).value();
  const std::vector<NamedTensor> ours = FormulaStep(*model, c.batch, c.size, at::kFloat);
  ASSERT_EQ(ours.size(), python.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ExpectEqualBits(ours[i].part, ours[i].name, ours[i].value, python[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ResNetPythonTest,
    testing::Values(Case{"resnet18", "imagenet", 4, 32, 1}, Case{"resnet18", "imagenet", 32, 32, 2},
                    Case{"resnet18", "cifar", 4, 32, 1}, Case{"resnet50", "imagenet", 4, 64, 1},
                    Case{"resnext50_32x4d", "imagenet", 4, 32, 1}),
    [](const auto& info) {
      const Case& c = info.param;
      return absl::StrCat(c.model, c.stem, "Batch", c.batch, "Threads", c.threads);
    });

// Those whose operations are ours, and in another order than Python's, so that rounding differs.
class TransformerPythonTest : public testing::TestWithParam<Case> {};

TEST_P(TransformerPythonTest, TrainingStepIsPythonsWithinRounding) {
  const Case& c = GetParam();
  const std::vector<PythonTensor> python =
      RunPython(absl::StrCat("--model=", c.model, " --batch=", c.batch, " --size=", c.size));
  SKIP_WITHOUT_PYTHON(python);
  ModelOptions options;
  options.name = c.model;
  options.image_size = c.size;
  options.gpt_width = 32;
  options.gpt_layers = 2;
  options.gpt_heads = 4;
  options.gpt_context = c.size;
  options.dropout = 0;
  const auto model = CreateModel(options).value();
  const std::vector<NamedTensor> ours =
      FormulaStep(*model, c.batch, c.size, at::kFloat, /*tokens=*/c.model == "gpt");
  ASSERT_EQ(ours.size(), python.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].name, python[i].name);
    const at::Tensor flat = ours[i].value.contiguous();
    ASSERT_EQ(flat.numel(), static_cast<int64_t>(python[i].values.size())) << ours[i].name;
    double difference = 0, norm = 0;
    for (int64_t k = 0; k < flat.numel(); ++k) {
      const double wanted = python[i].values[k];
      difference += std::pow(flat.data_ptr<float>()[k] - wanted, 2);
      norm += wanted * wanted;
    }
    // A gradient that is zero but for rounding (of a key's bias, which no softmax sees) has no norm
    // to compare with.
    EXPECT_LT(std::sqrt(difference), 1e-4 * std::sqrt(norm) + 1e-6)
        << ours[i].part << " " << ours[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TransformerPythonTest,
                         testing::Values(Case{"vit_s_16", "", 2, 32, 1}, Case{"gpt", "", 3, 8, 1}),
                         [](const auto& info) { return info.param.model; });

TEST(ResNetPythonInitTest, SeedGivesTheWeightsThatPythonDraws) {
  for (const char* name : {"resnet18", "resnet50", "resnext50_32x4d", "vgg16_bn", "vit_s_16"}) {
    // All of the first two; of the others, drawn one behind the other, the begin of each tensor.
    const bool all = std::string(name) == "resnet18" || std::string(name) == "resnet50";
    const std::vector<PythonTensor> python =
        RunPython(absl::StrCat("--model=", name, " --init_seed=7", all ? "" : " --most=1000"));
    SKIP_WITHOUT_PYTHON(python);
    ModelOptions options;
    options.name = name;
    options.seed = 7;
    const auto parameters = CreateModel(options).value()->named_parameters();
    ASSERT_EQ(parameters.size(), python.size());
    for (size_t i = 0; i < python.size(); ++i) {
      const at::Tensor flat = parameters[i].value().flatten();
      const int64_t most = std::min<int64_t>(flat.numel(), all ? flat.numel() : 1000);
      ExpectEqualBits("initial", parameters[i].key(), flat.narrow(0, 0, most), python[i]);
    }
  }
}

std::string ShapesOf(const ModelEntry& entry) {
  ModelOptions options;
  options.name = entry.name;
  const auto model = CreateModel(options).value();
  std::string text = absl::StrCat("model ", entry.name, "\n");
  const auto add = [&text](const char* part, const auto& tensors) {
    for (const auto& item : tensors) {
      absl::StrAppend(&text, part, " ", item.key());
      for (int64_t size : item.value().sizes()) absl::StrAppend(&text, " ", size);
      absl::StrAppend(&text, "\n");
    }
  };
  add("parameter", model->named_parameters());
  add("buffer", model->named_buffers());
  return text;
}

// The names, order and sizes of all parameters and buffers.
class ShapesPythonTest : public testing::TestWithParam<ModelEntry> {};

TEST_P(ShapesPythonTest, NamesOrderAndShapesAreTorchvisions) {
  static const std::string python = RunPythonForShapes();
  if (python.empty()) GTEST_SKIP() << kPython << " has no torch with torchvision";
  const std::string name = GetParam().name;
  const size_t begin = python.find("model " + name + "\n");
  if (begin == std::string::npos) GTEST_SKIP() << "this torchvision has no " << name;
  const size_t end = python.find("model ", begin + 1);
  EXPECT_EQ(ShapesOf(GetParam()), python.substr(begin, end - begin));
}

std::vector<ModelEntry> InTorchvision() {
  std::vector<ModelEntry> entries;
  for (const ModelEntry& entry : Models()) {
    if (entry.family != ModelFamily::kGpt && entry.family != ModelFamily::kMlp) {
      entries.push_back(entry);
    }
  }
  return entries;
}

INSTANTIATE_TEST_SUITE_P(Models, ShapesPythonTest, testing::ValuesIn(InTorchvision()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradsync
