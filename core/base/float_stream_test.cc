#include "core/base/float_stream.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::vector<float> Numbered(size_t n, float first) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = first + 0.25f * static_cast<float>(i);
  return values;
}

absl::string_view Bytes(const std::vector<float>& values) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(float));
}

TEST(FloatStreamTest, AnyTwoCutsGiveTheSameSum) {
  const std::vector<float> before = Numbered(5, 100), x = Numbered(5, 1);
  std::vector<float> expected = before;
  for (size_t i = 0; i < 5; ++i) expected[i] += x[i];
  for (size_t first = 0; first <= 20; ++first) {
    for (size_t second = first; second <= 20; ++second) {
      std::vector<float> acc = before;
      FloatAdder adder(acc.data(), acc.size());
      ASSERT_TRUE(adder.Consume(Bytes(x).substr(0, first)).ok());
      ASSERT_TRUE(adder.Consume(Bytes(x).substr(first, second - first)).ok());
      ASSERT_TRUE(adder.Consume(Bytes(x).substr(second)).ok());
      EXPECT_TRUE(adder.Finish().ok());
      EXPECT_EQ(acc, expected) << first << " " << second;
    }
  }
}

TEST(FloatStreamTest, RandomRunsCopyTheirBytes) {
  const std::vector<float> x = Numbered(1000, -3);
  std::mt19937 random(1);
  for (size_t longest : {1, 2, 3, 7, 64, 1000}) {
    std::vector<float> out(x.size(), -1.0f);
    FloatCopier copier(out.data(), out.size());
    absl::string_view rest = Bytes(x);
    while (!rest.empty()) {
      const size_t run = std::uniform_int_distribution<size_t>(0, longest)(random);
      ASSERT_TRUE(copier.Consume(rest.substr(0, run)).ok());
      rest.remove_prefix(std::min(run, rest.size()));
    }
    EXPECT_EQ(copier.consumed(), x.size() * sizeof(float));
    EXPECT_TRUE(copier.Finish().ok());
    EXPECT_EQ(out, x) << longest;
  }
}

TEST(FloatStreamTest, BytesTooManyAreRefusedAndChangeNothing) {
  const std::vector<float> x = Numbered(3, 1);
  std::vector<float> acc = {7, 8};
  FloatAdder adder(acc.data(), 2);
  absl::Status status = adder.Consume(Bytes(x));
  EXPECT_EQ(status, absl::DataLossError("floats received: expected 8 bytes, found 12 or more"));
  EXPECT_EQ(acc, (std::vector<float>{7, 8}));
  ASSERT_TRUE(adder.Consume(Bytes(x).substr(0, 7)).ok());
  EXPECT_FALSE(adder.Consume(Bytes(x).substr(7, 2)).ok());
  EXPECT_TRUE(adder.Consume(Bytes(x).substr(7, 1)).ok());
  EXPECT_TRUE(adder.Finish().ok());
  EXPECT_FALSE(adder.Consume("x").ok());
}

TEST(FloatStreamTest, MissingBytesAreFoundAtTheEnd) {
  std::vector<float> out(2);
  FloatCopier copier(out.data(), 2);
  ASSERT_TRUE(copier.Consume("abcde").ok());
  EXPECT_EQ(copier.Finish(), absl::DataLossError("floats received: expected 8 bytes, found 5"));
}

TEST(FloatStreamTest, AnEmptyRangeIsCompleteFromTheStart) {
  FloatAdder adder(nullptr, 0);
  EXPECT_TRUE(adder.Consume("").ok());
  EXPECT_TRUE(adder.Finish().ok());
  EXPECT_FALSE(adder.Consume("a").ok());
}

}  // namespace
}  // namespace gradsync
