#include "core/collectives/fold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// All of the elements in one part, or in parts that are cut anywhere.
class Input {
 public:
  template <typename T>
  explicit Input(const std::vector<T>& elements, size_t part_bytes = 0)
      : bytes_(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T)) {
    if (part_bytes == 0) {
      parts_.push_back(bytes_);
      return;
    }
    bytes_.insert(0, 1, 'x');  // so that nothing is aligned
    for (size_t at = 1; at < bytes_.size(); at += part_bytes) {
      parts_.push_back({bytes_.data() + at, std::min(part_bytes, bytes_.size() - at)});
      parts_.push_back({});
    }
  }
  Input(const Input&) = delete;

  FoldInput at(size_t offset = 0) const { return {parts_, offset}; }

 private:
  std::string bytes_;
  std::vector<absl::Span<const char>> parts_;
};

template <typename T>
std::vector<T> Folded(ElementKind kind, FoldOp op, const std::vector<std::vector<T>>& inputs,
                      int divisor = 1, size_t part_bytes = 0) {
  std::vector<std::unique_ptr<Input>> kept;
  std::vector<FoldInput> ins;
  for (const auto& input : inputs) {
    kept.push_back(std::make_unique<Input>(input, part_bytes));
    ins.push_back(kept.back()->at());
  }
  std::vector<T> out(inputs[0].size()), copy(inputs[0].size());
  Fold(kind, op, ins, static_cast<int64_t>(out.size()), divisor,
       reinterpret_cast<char*>(out.data()), reinterpret_cast<char*>(copy.data()));
  EXPECT_EQ(std::memcmp(out.data(), copy.data(), out.size() * sizeof(T)), 0);
  return out;
}

TEST(FoldTest, EachOperationOfIntegersIsThatOfTheLanguage) {
  const std::vector<std::vector<int32_t>> inputs = {{12, -5, 7}, {10, 3, 7}, {6, 9, -1}};
  const auto fold = [&](FoldOp op) { return Folded(ElementKind::kInt32, op, inputs); };
  EXPECT_EQ(fold(FoldOp::kSum), (std::vector<int32_t>{28, 7, 13}));
  EXPECT_EQ(fold(FoldOp::kProduct), (std::vector<int32_t>{720, -135, -49}));
  EXPECT_EQ(fold(FoldOp::kMin), (std::vector<int32_t>{6, -5, -1}));
  EXPECT_EQ(fold(FoldOp::kMax), (std::vector<int32_t>{12, 9, 7}));
  EXPECT_EQ(fold(FoldOp::kAnd), (std::vector<int32_t>{12 & 10 & 6, -5 & 3 & 9, 7}));
  EXPECT_EQ(fold(FoldOp::kOr), (std::vector<int32_t>{12 | 10 | 6, -5 | 3 | 9, -1}));
  EXPECT_EQ(fold(FoldOp::kXor), (std::vector<int32_t>{12 ^ 10 ^ 6, -5 ^ 3 ^ 9, 7 ^ 7 ^ -1}));
}

TEST(FoldTest, IntegersWrapAround) {
  EXPECT_EQ(Folded<int8_t>(ElementKind::kInt8, FoldOp::kSum, {{127}, {1}}),
            std::vector<int8_t>{-128});
  EXPECT_EQ(Folded<uint8_t>(ElementKind::kUint8, FoldOp::kSum, {{200}, {100}}),
            std::vector<uint8_t>{44});
  EXPECT_EQ(Folded<int16_t>(ElementKind::kInt16, FoldOp::kProduct, {{-32768}, {-1}}),
            std::vector<int16_t>{-32768});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Folded<int64_t>(ElementKind::kInt64, FoldOp::kSum, {{kMost}, {1}}),
            std::vector<int64_t>{std::numeric_limits<int64_t>::min()});
}

TEST(FoldTest, BoolsAreLogical) {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 0, 2, 1}, {0, 1, 0, 4}};
  const auto fold = [&](FoldOp op) { return Folded(ElementKind::kBool, op, inputs); };
  using Bytes = std::vector<uint8_t>;
  for (FoldOp op : {FoldOp::kSum, FoldOp::kMax, FoldOp::kOr})
    EXPECT_EQ(fold(op), (Bytes{0, 1, 1, 1}));
  for (FoldOp op : {FoldOp::kProduct, FoldOp::kMin, FoldOp::kAnd}) {
    EXPECT_EQ(fold(op), (Bytes{0, 0, 0, 1}));
  }
  EXPECT_EQ(fold(FoldOp::kXor), (Bytes{0, 1, 1, 0}));
}

TEST(FoldTest, FloatsAreFoldedInOrder) {
  const std::vector<std::vector<float>> inputs = {{1e8f, 0.1f}, {-1e8f, 0.2f}, {1.0f, 0.3f}};
  EXPECT_EQ(Folded(ElementKind::kFloat32, FoldOp::kSum, inputs),
            (std::vector<float>{1.0f, (0.1f + 0.2f) + 0.3f}));
  EXPECT_EQ(Folded(ElementKind::kFloat32, FoldOp::kAvg, inputs, 3),
            (std::vector<float>{1.0f * (1.0f / 3), ((0.1f + 0.2f) + 0.3f) * (1.0f / 3)}));
  EXPECT_EQ(Folded(ElementKind::kFloat32, FoldOp::kProduct, inputs),
            (std::vector<float>{(1e8f * -1e8f) * 1.0f, (0.1f * 0.2f) * 0.3f}));
  const std::vector<std::vector<double>> doubles = {{0.1, 3}, {0.2, 4}, {0.3, -1}};
  EXPECT_EQ(Folded(ElementKind::kFloat64, FoldOp::kSum, doubles),
            (std::vector<double>{(0.1 + 0.2) + 0.3, 6}));
  EXPECT_EQ(Folded(ElementKind::kFloat64, FoldOp::kAvg, doubles, 3)[1], 6 * (1.0 / 3));
}

TEST(FoldTest, MinAndMaxOfANanAreANan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (FoldOp op : {FoldOp::kMin, FoldOp::kMax}) {
    const auto folded =
        Folded<float>(ElementKind::kFloat32, op, {{nan, 1, 1}, {2, nan, 2}, {3, 3, nan}});
    for (float value : folded) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(FoldTest, SixteenBitFloatsAreRoundedAfterEachStep) {
  // 1 is 0x3f80 in bfloat16, 256 is 0x4380, 258 is 0x4381: a 1 that is added to 256 is rounded away.
  EXPECT_EQ(Folded<uint16_t>(ElementKind::kBfloat16, FoldOp::kSum, {{0x4380}, {0x3f80}, {0x3f80}}),
            std::vector<uint16_t>{0x4380});
  EXPECT_EQ(Folded<uint16_t>(ElementKind::kBfloat16, FoldOp::kSum, {{0x3f80}, {0x3f80}, {0x4380}}),
            std::vector<uint16_t>{0x4381});
  // 1.5, 2 and 3 in float16.
  EXPECT_EQ(Folded<uint16_t>(ElementKind::kFloat16, FoldOp::kProduct, {{0x3e00}, {0x4000}}),
            std::vector<uint16_t>{0x4200});
  EXPECT_EQ(Folded<uint16_t>(ElementKind::kFloat16, FoldOp::kMax, {{0x3e00}, {0x4000}}),
            std::vector<uint16_t>{0x4000});
  EXPECT_EQ(Folded<uint16_t>(ElementKind::kFloat16, FoldOp::kAvg, {{0x4200}, {0x4200}}, 2),
            std::vector<uint16_t>{0x4200});
}

TEST(FoldTest, WherePartsAreCutMakesNoDifference) {
  for (size_t count : {1, 63, 1024, 1025, 5000}) {
    std::vector<std::vector<float>> inputs(3, std::vector<float>(count));
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < 3; ++k) inputs[k][i] = 0.1f * static_cast<float>(i * 3 + k);
    }
    const auto whole = Folded(ElementKind::kFloat32, FoldOp::kAvg, inputs, 3);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(whole[i], ((inputs[0][i] + inputs[1][i]) + inputs[2][i]) * (1.0f / 3));
    }
    for (size_t part_bytes : {3, 4099}) {
      EXPECT_EQ(Folded(ElementKind::kFloat32, FoldOp::kAvg, inputs, 3, part_bytes), whole);
    }
  }
}

TEST(FoldTest, InputsBeginAtTheirOffset) {
  const Input first(std::vector<int64_t>{1, 2, 3, 4}),
      second(std::vector<int64_t>{10, 20, 30, 40}, 5);
  std::vector<int64_t> out(2);
  const FoldInput inputs[] = {first.at(16), second.at(16)};
  Fold(ElementKind::kInt64, FoldOp::kSum, inputs, 2, 1, reinterpret_cast<char*>(out.data()));
  EXPECT_EQ(out, (std::vector<int64_t>{33, 44}));
}

TEST(FoldTest, TheResultMayBeWrittenOverAnInput) {
  std::vector<float> own(10000, 1.0f);
  const std::vector<float> other(own.size(), 2.0f);
  const absl::Span<const char> spans[] = {
      {reinterpret_cast<const char*>(own.data()), own.size() * 4},
      {reinterpret_cast<const char*>(other.data()), other.size() * 4}};
  const FoldInput inputs[] = {{{&spans[1], 1}}, {{&spans[0], 1}}};
  for (FoldOp op : {FoldOp::kSum, FoldOp::kProduct}) {
    Fold(ElementKind::kFloat32, op, inputs, static_cast<int64_t>(own.size()), 1,
         reinterpret_cast<char*>(own.data()));
  }
  EXPECT_EQ(own, std::vector<float>(own.size(), 6.0f));
}

TEST(FoldTest, WhatCannotBeFoldedIsRefused) {
  EXPECT_EQ(CheckFold(ElementKind::kFloat32, FoldOp::kAvg), absl::OkStatus());
  for (ElementKind kind : {ElementKind::kInt32, ElementKind::kBool}) {
    EXPECT_THAT(std::string(CheckFold(kind, FoldOp::kAvg).message()), HasSubstr("found avg"));
  }
  EXPECT_THAT(std::string(CheckFold(ElementKind::kBfloat16, FoldOp::kAnd).message()),
              HasSubstr("expected one that bfloat16 has, found and"));
  EXPECT_TRUE(
      absl::IsInvalidArgument(CheckFold(static_cast<ElementKind>(kElementKinds), FoldOp::kSum)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(CheckFold(ElementKind::kInt8, static_cast<FoldOp>(kFoldOps))));
}

}  // namespace
}  // namespace gradsync
