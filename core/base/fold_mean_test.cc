#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/base/kernels.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using Rows = std::vector<std::vector<float>>;

// Around every vector width and off every vector's alignment.
const size_t kSizes[] = {0, 1, 3, 15, 16, 17, 31, 64, 100, 4099};

Rows RandomRows(int rows, size_t n) {
  std::mt19937 random(static_cast<uint32_t>(rows * 10007 + n));
  std::uniform_real_distribution<float> value(-2, 2);
  Rows all(rows, std::vector<float>(n));
  for (std::vector<float>& row : all) {
    for (float& x : row) x = value(random);
  }
  return all;
}

// The definition: one rounding per operation, first contribution first.
std::vector<float> Expected(const Rows& ins, float a, float b) {
  std::vector<float> result(ins[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    volatile float sum = ins[0][i];
    for (size_t k = 1; k < ins.size(); ++k) sum = sum + ins[k][i];
    sum = sum * a;
    sum = sum * b;
    result[i] = sum;
  }
  return result;
}

std::vector<const float*> Inputs(const Rows& rows) {
  std::vector<const float*> pointers;
  for (const std::vector<float>& row : rows) pointers.push_back(row.data());
  return pointers;
}

std::vector<float*> Outputs(Rows* rows) {
  std::vector<float*> pointers;
  for (std::vector<float>& row : *rows) pointers.push_back(row.data());
  return pointers;
}

class FoldMeanTest : public ::testing::TestWithParam<KernelLevel> {
 protected:
  void SetUp() override {
    if (!CpuHasKernelLevel(GetParam())) GTEST_SKIP() << "this CPU lacks the level";
  }

  void Run(Rows* outs, const Rows& ins, float a, float b) const {
    KernelsOf(GetParam())
        .fold_mean(Outputs(outs).data(), static_cast<int>(outs->size()), Inputs(ins).data(),
                   static_cast<int>(ins.size()), ins[0].size(), a, b);
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, FoldMeanTest,
                         ::testing::Values(KernelLevel::kBaseline, KernelLevel::kAvx2,
                                           KernelLevel::kAvx512),
                         [](const ::testing::TestParamInfo<KernelLevel>& info) {
                           return std::string(KernelLevelName(info.param));
                         });

TEST_P(FoldMeanTest, FoldsFromTheFirstInputAndScalesTwice) {
  for (int ranks = 1; ranks <= 11; ++ranks) {
    for (size_t n : kSizes) {
      const Rows ins = RandomRows(ranks, n);
      const float a = 1.0f / static_cast<float>(ranks), b = 1.0f / 3;
      const std::vector<float> expected = Expected(ins, a, b);
      for (int num_outs : {1, 2, ranks, ranks + 1}) {
        Rows outs(num_outs, std::vector<float>(n, -1.0f));
        Run(&outs, ins, a, b);
        for (const std::vector<float>& out : outs) {
          // An empty vector may have no memory to compare.
          EXPECT_TRUE(n == 0 || std::memcmp(out.data(), expected.data(), n * sizeof(float)) == 0)
              << ranks << " inputs, " << num_outs << " outputs of " << n;
        }
      }
    }
  }
}

TEST_P(FoldMeanTest, OutputsMayBeTheInputs) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    Rows rows = RandomRows(ranks, 1003);
    const std::vector<float> expected = Expected(rows, 0.25f, 3.0f);
    Run(&rows, rows, 0.25f, 3.0f);
    for (const std::vector<float>& row : rows) EXPECT_EQ(row, expected) << ranks;
  }
}

TEST_P(FoldMeanTest, HasTheBitsOfAddAndScaleTwice) {
  const Rows ins = RandomRows(5, 777);
  std::vector<float> sum = ins[0];
  for (int k = 1; k < 5; ++k) KernelsOf(GetParam()).add(sum.data(), ins[k].data(), sum.size());
  KernelsOf(GetParam()).scale_twice(sum.data(), sum.size(), 1.0f / 5, 0.7f);
  Rows outs(1, std::vector<float>(777));
  Run(&outs, ins, 1.0f / 5, 0.7f);
  EXPECT_EQ(outs[0], sum);
}

}  // namespace
}  // namespace gradsync
