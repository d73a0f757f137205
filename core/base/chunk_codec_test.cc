#include "core/base/chunk_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"
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

std::vector<uint32_t> Largest(const std::vector<float>& x, size_t k) {
  std::vector<uint32_t> indices(k);
  SelectLargest(x.data(), x.size(), k, indices.data());
  return indices;
}

// By a stable sort of the whole.
std::vector<uint32_t> Sorted(const std::vector<float>& x, size_t k) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectLargestTest, AgreesWithASortForEveryCount) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(400);
  for (float& value : x) value = normal(random) * std::exp2(static_cast<float>(random() % 20));
  for (size_t k = 1; k <= x.size(); ++k) EXPECT_EQ(Largest(x, k), Sorted(x, k)) << k;
}

TEST(SelectLargestTest, OfEqualOnesTakesTheFirst) {
  std::mt19937 random(2);
  std::vector<float> x(300);
  for (float& value : x) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  for (size_t k = 1; k <= x.size(); ++k) EXPECT_EQ(Largest(x, k), Sorted(x, k)) << k;
  EXPECT_EQ(Largest(std::vector<float>(5, 0.0f), 3), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(SelectLargestTest, WhatIsNotFiniteComesFirst) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {1, 3e38f, -inf, 0, -nan, 2};
  EXPECT_EQ(Largest(x, 1), (std::vector<uint32_t>{4}));
  EXPECT_EQ(Largest(x, 2), (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(Largest(x, 3), (std::vector<uint32_t>{1, 2, 4}));
}

TEST(SelectLargestTest, DenormalsAreToldApart) {
  const std::vector<float> x = {1e-45f, 0, -3e-45f, 2.8e-45f};
  EXPECT_EQ(Largest(x, 1), (std::vector<uint32_t>{2}));
  EXPECT_EQ(Largest(x, 3), (std::vector<uint32_t>{0, 2, 3}));
}

TEST(SelectLargestTest, NothingOfNothing) { SelectLargest(nullptr, 0, 0, nullptr); }

using Kind = ChunkForm::Kind;
using Mode = ChunkDecoder::Mode;

constexpr float kInverseN = 1.0f / 3, kInverseLossScale = 1.0f / 1000;

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

std::string Encode(const ChunkForm& form, const std::vector<float>& values) {
  std::string out(form.bytes(), '\0');
  EncodeChunk(form, values.data(), out.data());
  return out;
}

absl::Status Decode(const ChunkForm& form, Mode mode, absl::string_view payload, size_t part,
                    std::vector<float>* out) {
  ChunkDecoder decoder(form, mode, out->data(), kInverseN, kInverseLossScale);
  for (size_t at = 0; at < payload.size(); at += part) {
    const absl::Status status = decoder.Consume(payload.substr(at, part));
    if (!status.ok()) return status;
  }
  return decoder.Finish();
}

// Ties to even, from the definition: the nearest of the two neighbours that drop the lower bits.
float RoundedToBfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t low = bits & 0xffff;
  bits -= low;
  if (low > 0x8000 || (low == 0x8000 && (bits & 0x10000) != 0)) bits += 0x10000;
  std::memcpy(&x, &bits, 4);
  return x;
}

float RoundedToHalf(float x) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -14);
  const double unit = std::ldexp(1.0, exponent - 10);
  return static_cast<float>(std::nearbyint(x / unit) * unit);
}

std::vector<ChunkForm> Forms(int64_t n) {
  return {{Kind::kFp32, n, 0},
          {Kind::kFp16, n, 0},
          {Kind::kBf16, n, 0},
          {Kind::kSparse, n, (n + 9) / 10},
          {Kind::kSparse, n, n}};
}

std::string Name(const ChunkForm& form) {
  return absl::StrCat("kind ", static_cast<int>(form.kind), ", ", form.elements, " elements, ",
                      form.entries, " entries");
}

TEST(ChunkFormTest, BytesAreThoseOfTheTable) {
  EXPECT_EQ((ChunkForm{Kind::kFp32, 48, 0}.bytes()), 192);
  EXPECT_EQ((ChunkForm{Kind::kFp16, 48, 0}.bytes()), 96);
  EXPECT_EQ((ChunkForm{Kind::kBf16, 48, 0}.bytes()), 96);
  EXPECT_EQ((ChunkForm{Kind::kSparse, 48, 5}.bytes()), 30);
  EXPECT_EQ((ChunkForm{Kind::kSparse, 65536, 5}.bytes()), 30);
  EXPECT_EQ((ChunkForm{Kind::kSparse, 65552, 5}.bytes()), 40);
}

TEST(ChunkCodecTest, SixteenBitsRoundToNearestEven) {
  const std::vector<float> values = RandomFloats(3000, 1);
  for (const ChunkForm& form : Forms(3000)) {
    if (form.kind != Kind::kFp16 && form.kind != Kind::kBf16) continue;
    std::vector<float> found(values.size(), -1);
    ASSERT_TRUE(Decode(form, Mode::kCopy, Encode(form, values), 1 << 20, &found).ok());
    std::vector<float> rounded = values;
    RoundChunk(form.kind, rounded.data(), rounded.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected =
          form.kind == Kind::kFp16 ? RoundedToHalf(values[i]) : RoundedToBfloat16(values[i]);
      ASSERT_EQ(found[i], expected) << Name(form) << " element " << i;
      ASSERT_EQ(rounded[i], expected) << Name(form) << " element " << i;
    }
  }
}

TEST(ChunkCodecTest, ARoundedChunkIsNotRoundedAgain) {
  for (Kind kind : {Kind::kFp32, Kind::kFp16, Kind::kBf16, Kind::kSparse}) {
    std::vector<float> once = RandomFloats(100, 2);
    once[7] = std::numeric_limits<float>::infinity();
    RoundChunk(kind, once.data(), once.size());
    std::vector<float> twice = once;
    RoundChunk(kind, twice.data(), twice.size());
    EXPECT_EQ(once, twice);
  }
}

TEST(ChunkCodecTest, WhereAPayloadIsCutMakesNoDifference) {
  for (const ChunkForm& form : Forms(1600)) {
    const std::string payload = Encode(form, RandomFloats(1600, 3));
    for (Mode mode : {Mode::kAdd, Mode::kCopy, Mode::kAddAndScale}) {
      const std::vector<float> before = RandomFloats(1600, 4);
      std::vector<float> whole = before;
      ASSERT_TRUE(Decode(form, mode, payload, payload.size(), &whole).ok());
      for (size_t part : {1, 3, 7, 1001}) {
        std::vector<float> cut = before;
        ASSERT_TRUE(Decode(form, mode, payload, part, &cut).ok());
        EXPECT_EQ(cut, whole) << Name(form) << " part " << part;
      }
    }
  }
}

TEST(ChunkCodecTest, AddingIsDecodingAndThenAdding) {
  for (const ChunkForm& form : Forms(96)) {
    const std::string payload = Encode(form, RandomFloats(96, 5));
    std::vector<float> decoded(96);
    ASSERT_TRUE(Decode(form, Mode::kCopy, payload, 96, &decoded).ok());
    const std::vector<float> before = RandomFloats(96, 6);
    std::vector<float> sum = before;
    ASSERT_TRUE(Decode(form, Mode::kAdd, payload, 96, &sum).ok());
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], before[i] + decoded[i]);
  }
}

TEST(ChunkCodecTest, AddingAndScalingIsAddingAndThenScalingAll) {
  for (const ChunkForm& form : Forms(1600)) {
    const std::string payload = Encode(form, RandomFloats(1600, 5));
    const std::vector<float> before = RandomFloats(1600, 6);
    std::vector<float> expected = before, mean = before;
    ASSERT_TRUE(Decode(form, Mode::kAdd, payload, 96, &expected).ok());
    ScaleTwice(expected.data(), expected.size(), kInverseN, kInverseLossScale);
    ASSERT_TRUE(Decode(form, Mode::kAddAndScale, payload, 96, &mean).ok());
    EXPECT_EQ(mean, expected) << Name(form);
  }
}

TEST(ChunkCodecTest, SparseSendsTheLargestAndForgettingLeavesTheRest) {
  const ChunkForm form = {Kind::kSparse, 8, 3};
  std::vector<float> values = {0.5f, -4, 0, 3, -0.0f, 4, 3, 1};
  const std::string payload = Encode(form, values);
  std::vector<float> sent(8, 99);
  ASSERT_TRUE(Decode(form, Mode::kCopy, payload, 5, &sent).ok());
  EXPECT_EQ(sent, (std::vector<float>{0, -4, 0, 3, 0, 4, 0, 0}));
  ForgetEncoded(form, payload.data(), values.data());
  EXPECT_EQ(values, (std::vector<float>{0.5f, 0, 0, 0, 0, 0, 3, 1}));
}

TEST(ChunkCodecTest, LargeChunksHaveLongIndices) {
  const int64_t n = 70000;
  const ChunkForm form = {Kind::kSparse, n, 2};
  std::vector<float> values(n, 0.0f);
  values[5] = 1;
  values[69999] = -2;
  std::vector<float> sent(n);
  ASSERT_TRUE(Decode(form, Mode::kCopy, Encode(form, values), 3, &sent).ok());
  EXPECT_EQ(sent, values);
}

TEST(ChunkCodecTest, OverflowSaturatesUnlessAskedAndWhatIsNotFiniteShows) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {65504, 65520, -1e30f, NAN, kInf, -kInf};
  const ChunkForm half = {Kind::kFp16, 6, 0};
  std::vector<float> found(6);
  ASSERT_TRUE(Decode(half, Mode::kCopy, Encode(half, values), 12, &found).ok());
  EXPECT_EQ(found[0], 65504);
  EXPECT_EQ(found[1], 65504);
  EXPECT_EQ(found[2], -65504);
  EXPECT_TRUE(std::isnan(found[3]));
  EXPECT_EQ(found[4], kInf);
  EXPECT_EQ(found[5], -kInf);
  std::vector<float> rounded = values;
  RoundChunk(Kind::kFp16, rounded.data(), rounded.size());
  EXPECT_EQ(rounded[1], 65504);
  EXPECT_EQ(rounded[4], kInf);
  std::string payload(static_cast<size_t>(half.bytes()), '\0');
  EncodeChunk(half, values.data(), &payload[0], Overflow::kInfinite);
  ASSERT_TRUE(Decode(half, Mode::kCopy, payload, 12, &found).ok());
  EXPECT_EQ(found[1], kInf);
  EXPECT_EQ(found[2], -kInf);
  EXPECT_EQ(found[4], kInf);
  const ChunkForm brain = {Kind::kBf16, 6, 0};
  ASSERT_TRUE(Decode(brain, Mode::kCopy, Encode(brain, values), 12, &found).ok());
  EXPECT_TRUE(std::isfinite(found[2]));
  EXPECT_TRUE(std::isnan(found[3]));
}

TEST(ChunkCodecTest, PayloadsOfAnotherLengthAreRefused) {
  for (const ChunkForm& form : Forms(32)) {
    std::string payload = Encode(form, RandomFloats(32, 7));
    std::vector<float> out(32);
    absl::Status status = Decode(form, Mode::kCopy, payload + "x", 16, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << Name(form);
    payload.pop_back();
    status = Decode(form, Mode::kCopy, payload, 16, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << Name(form);
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("expected ", form.bytes())))
        << status;
  }
}

// A peer may send anything: no index may reach outside the chunk.
TEST(ChunkCodecTest, IndicesThatDoNotAscendWithinTheChunkAreRefused) {
  const ChunkForm form = {Kind::kSparse, 32, 2};
  const auto payload = [](uint16_t first, uint16_t second) {
    std::string bytes(12, '\0');
    std::memcpy(&bytes[0], &first, 2);
    std::memcpy(&bytes[6], &second, 2);
    return bytes;
  };
  std::vector<float> out(32);
  EXPECT_TRUE(Decode(form, Mode::kAdd, payload(0, 31), 4, &out).ok());
  for (const std::string& bad : {payload(3, 3), payload(4, 3), payload(0, 32), payload(65535, 1)}) {
    EXPECT_EQ(Decode(form, Mode::kAdd, bad, 4, &out).code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace gradsync
