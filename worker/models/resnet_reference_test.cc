// Compares one training step with torchvision's, stored in testdata/resnet_reference.txt by
// testdata/make_resnet_reference.py.

#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"
#include "worker/models/formula_step.h"

namespace gradsync {
namespace {

constexpr char kReference[] = "worker/models/testdata/resnet_reference.txt";
constexpr int kProbes = 2;

struct Line {
  std::string part, name;
  std::vector<double> values;  // Of output: the elements. Else the norm and the probes.
};

// The stored lines of one case.
std::vector<Line> Load(const std::string& wanted) {
  std::vector<Line> lines;
  std::ifstream file(kReference);
  EXPECT_TRUE(file.is_open()) << kReference;
  bool inside = false;
  for (std::string text; std::getline(file, text);) {
    if (text[0] == '#') continue;
    if (text.rfind("case ", 0) == 0) {
      inside = text == "case " + wanted;
    } else if (inside) {
      std::istringstream words(text);
      Line line;
      words >> line.part >> line.name;
      for (double v; words >> v;) line.values.push_back(v);
      lines.push_back(line);
    }
  }
  return lines;
}

std::vector<double> Elements(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  const double* data = flat.data_ptr<double>();
  return std::vector<double>(data, data + flat.numel());
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v * v;
  return std::sqrt(sum);
}

// The norm of (found - stored) over the norm of stored: exact for outputs, else estimated from dot
// products with random signs (whose squares are the square of the norm, on average).
double RelativeDifference(const NamedTensor& found, const Line& stored) {
  const std::vector<double> elements = Elements(found.value);
  if (stored.part == "output") {
    EXPECT_EQ(elements.size(), stored.values.size());
    std::vector<double> difference = elements;
    for (size_t i = 0; i < elements.size(); ++i) difference[i] -= stored.values[i];
    return Norm(difference) / Norm(stored.values);
  }
  EXPECT_EQ(stored.values.size(), 1 + kProbes);
  double squares = 0;
  for (int probe = 0; probe < kProbes; ++probe) {
    const uint64_t hash = FormulaHash(absl::StrCat(found.part, " ", found.name, " probe ", probe));
    double dot = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      dot += FormulaBits(hash, static_cast<int64_t>(i)) >> 63 ? -elements[i] : elements[i];
    }
    squares += (dot - stored.values[1 + probe]) * (dot - stored.values[1 + probe]);
  }
  const double by_probes = std::sqrt(squares / kProbes);
  const double by_norm = std::abs(Norm(elements) - stored.values[0]);
  return std::max(by_probes, by_norm) / stored.values[0];
}

struct Case {
  std::string model, stem;
  int64_t batch, size;
};

class ResNetReferenceTest : public testing::TestWithParam<Case> {
 protected:
  std::vector<Line> Stored() const {
    const Case& c = GetParam();
    return Load(absl::StrCat(c.model, " ", c.stem, " ", c.batch, " ", c.size));
  }

  std::vector<NamedTensor> Step(at::ScalarType type) const {
    ModelOptions options;
    options.name = GetParam().model;
    options.stem = GetParam().stem;
    const auto model = CreateModel(options).value();
    return FormulaStep(*model, GetParam().batch, GetParam().size, type);
  }
};

// In double precision, where every machine agrees, all of the step equals torchvision's far closer
// than any mistake could.
TEST_P(ResNetReferenceTest, TrainingStepEqualsTorchvisions) {
  const std::vector<Line> stored = Stored();
  const std::vector<NamedTensor> found = Step(at::kDouble);
  ASSERT_GT(stored.size(), 100);
  ASSERT_EQ(found.size(), stored.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    ASSERT_EQ(found[i].part, stored[i].part);
    ASSERT_EQ(found[i].name, stored[i].name);
    EXPECT_LT(RelativeDifference(found[i], stored[i]), 1e-9)
        << found[i].part << " " << found[i].name;
  }
}

// In single precision rounding depends on the CPU, and ReLU's kink turns it into larger differences
// of single gradients, so only what lies before the first backward is compared; bits are compared
// by resnet_python_test.
TEST_P(ResNetReferenceTest, ForwardInSinglePrecisionIsWithinRounding) {
  const std::vector<Line> stored = Stored();
  const std::vector<NamedTensor> found = Step(at::kFloat);
  ASSERT_EQ(found.size(), stored.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].part != "output" && stored[i].part != "buffer") continue;
    EXPECT_LT(RelativeDifference(found[i], stored[i]), GetParam().model == "resnet18" ? 1e-5 : 2e-4)
        << found[i].part << " " << found[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, ResNetReferenceTest,
                         testing::Values(Case{"resnet18", "imagenet", 4, 64},
                                         Case{"resnet18", "cifar", 4, 32},
                                         Case{"resnet50", "imagenet", 4, 64}),
                         [](const auto& info) { return info.param.model + info.param.stem; });

}  // namespace
}  // namespace gradsync
