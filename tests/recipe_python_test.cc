// Compares learning rates and losses with those of Debian's python3-torch, run by this test.
// Skipped where it is missing.

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/models/loss.h"
#include "worker/train/recipe.h"

namespace gradsync {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr char kScript[] = "tests/testdata/recipe_reference.py";
constexpr int kSkip = 77;
constexpr int64_t kSteps = 24;

// The script's numbers by name. Empty if Python cannot do it here.
const std::map<std::string, std::vector<double>>& Python() {
  static const auto* const cases = [] {
    auto* const cases = new std::map<std::string, std::vector<double>>;
    std::string path = testing::TempDir() + "/recipe_XXXXXX";
    EXPECT_GE(mkstemp(path.data()), 0);
    const int status =
        std::system(absl::StrCat(kPython, " ", kScript, " 2>/dev/null > ", path).c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == kSkip || code == 126 || code == 127) return cases;
    EXPECT_EQ(code, 0);
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      for (double value; words >> value;) (*cases)[name].push_back(value);
    }
    std::remove(path.c_str());
    return cases;
  }();
  return *cases;
}

#define SKIP_WITHOUT_PYTHON() \
  if (Python().empty()) GTEST_SKIP() << kPython << " has no torch: apt-get install python3-torch"

void ExpectRates(const std::string& name, const RecipeOptions& options) {
  SCOPED_TRACE(name);
  const RecipeOptions fitted = FitRecipe(options, kSteps, /*steps_per_epoch=*/2).value();
  const auto python = Python().find(name);
  ASSERT_NE(python, Python().end());
  ASSERT_EQ(python->second.size(), static_cast<size_t>(kSteps));
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(LearningRate(fitted, step), python->second[step], 1e-12) << "step " << step;
  }
}

RecipeOptions Base(Schedule schedule) {
  RecipeOptions options;
  options.base = 0.4;
  options.schedule = schedule;
  return options;
}

TEST(RecipePythonTest, RatesAreThoseOfPythonsSchedulers) {
  SKIP_WITHOUT_PYTHON();
  RecipeOptions step = Base(Schedule::kStep);
  step.milestones = {3, 7, 20};
  step.gamma = 0.3;
  ExpectRates("step", step);
  RecipeOptions cosine = Base(Schedule::kCosine);
  cosine.final = 0.01;
  ExpectRates("cosine", cosine);
  RecipeOptions poly = Base(Schedule::kPoly);
  poly.power = 0.9;
  ExpectRates("poly", poly);
}

TEST(RecipePythonTest, WarmUpsAreThoseOfPythonsSchedulers) {
  SKIP_WITHOUT_PYTHON();
  RecipeOptions constant = Base(Schedule::kConstant);
  constant.warmup_steps = 5;
  ExpectRates("warm_default", constant);
  constant.warmup_start = 0.25;
  ExpectRates("warm_constant", constant);
  RecipeOptions cosine = Base(Schedule::kCosine);
  cosine.final = 0.01;
  cosine.warmup_epochs = 2;
  cosine.warmup_start = 0.1;
  ExpectRates("warm_cosine", cosine);
  RecipeOptions poly = Base(Schedule::kPoly);
  poly.power = 2;
  poly.warmup_steps = 4;
  poly.warmup_start = 0.1;
  ExpectRates("warm_poly", poly);
  RecipeOptions step = Base(Schedule::kStep);
  step.milestones = {3, 7};
  step.gamma = 0.3;
  step.warmup_steps = 5;
  step.warmup_start = 0.25;
  ExpectRates("warm_step", step);
}

TEST(RecipePythonTest, SmoothedLossesAndTheirGradientsArePythons) {
  SKIP_WITHOUT_PYTHON();
  std::vector<float> values;
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 5; ++j) values.push_back(static_cast<float>((3 * i + 5 * j) % 7) / 2 - 1);
  }
  const at::Tensor labels = at::tensor(std::vector<int64_t>{0, 4, 2, 2, 1, 3});
  for (const std::string smoothing : {"0", "0.1", "0.75", "1"}) {
    SCOPED_TRACE(smoothing);
    at::Tensor logits = at::tensor(values).view({6, 5}).set_requires_grad(true);
    const at::Tensor loss = CrossEntropy(logits, labels, std::stod(smoothing));
    loss.backward();
    const auto python = Python().find("loss_" + smoothing);
    ASSERT_NE(python, Python().end());
    ASSERT_EQ(python->second.size(), 31u);
    EXPECT_EQ(loss.item<float>(), static_cast<float>(python->second[0]));
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(logits.grad().data_ptr<float>()[i], static_cast<float>(python->second[1 + i]));
    }
  }
}

}  // namespace
}  // namespace gradsync
