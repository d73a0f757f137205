#include "worker/data/resample.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace gradsync {
namespace {

constexpr int kBits = 22;  // 8 of a byte, 2 for sums of many, and these make 32
constexpr int kHalf = 1 << (kBits - 1);
// Coefficients are multiplied in two parts of 11 bits, which 16-bit vector instructions take.
constexpr int kLowBits = 11;

// The input pixels of one output pixel.
struct Taps {
  int begin = 0;
  int count = 0;
};

// How output pixels of an axis are made of input pixels.
struct Weights {
  std::vector<Taps> taps;
  // A row of `most` for each output pixel, an even number: zeros follow the last.
  std::vector<int16_t> high, low;
  int most = 0;

  const int16_t* high_of(int i) const { return high.data() + int64_t{most} * i; }
  const int16_t* low_of(int i) const { return low.data() + int64_t{most} * i; }
};

Weights WeightsOf(const ResampleAxis& axis) {
  const double filter_scale = std::max(axis.step, 1.0);
  Weights weights;
  weights.taps.resize(axis.count);
  const int most_taps = static_cast<int>(std::ceil(filter_scale)) * 2 + 1;
  weights.most = most_taps + 1;
  weights.high.resize(int64_t{weights.most} * axis.count);
  weights.low.resize(weights.high.size());
  std::vector<double> triangle(most_taps);
  for (int i = 0; i < axis.count; ++i) {
    const double centre = axis.origin + (axis.first + i + 0.5) * axis.step;
    const int begin = std::clamp(static_cast<int>(std::floor(centre - filter_scale + 0.5)),
                                 axis.low, axis.high - 1);
    const int end =
        std::clamp(static_cast<int>(std::floor(centre + filter_scale + 0.5)), begin + 1, axis.high);
    const int count = std::min(end - begin, most_taps);
    double sum = 0;
    for (int t = 0; t < count; ++t) {
      const double distance = std::abs((begin + t - centre + 0.5) * (1.0 / filter_scale));
      triangle[t] = distance < 1 ? 1 - distance : 0;
      sum += triangle[t];
    }
    weights.taps[i] = {begin, count};
    for (int t = 0; t < count; ++t) {
      const auto value = static_cast<int32_t>(0.5 + triangle[t] / sum * (1 << kBits));
      const int64_t at = int64_t{weights.most} * i + t;
      weights.high[at] = static_cast<int16_t>(value >> kLowBits);
      weights.low[at] = static_cast<int16_t>(value & ((1 << kLowBits) - 1));
    }
  }
  return weights;
}

#ifdef __SSE2__

// The weights of two taps, four times.
__m128i Pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, sizeof(pair));
  return _mm_set1_epi32(pair);
}

// A pixel's bytes and the one behind them, as 16-bit values.
__m128i Pixel(const uint8_t* pixel) {
  int32_t bytes;
  std::memcpy(&bytes, pixel, sizeof(bytes));
  return _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), _mm_setzero_si128());
}

// Sums of products, in two parts, as values of 16 bits.
__m128i Rounded(__m128i high, __m128i low) {
  const __m128i sum = _mm_add_epi32(_mm_slli_epi32(high, kLowBits), low);
  const __m128i value = _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(kHalf)), kBits);
  return _mm_packs_epi32(value, value);
}

// One pixel at `out`, whose fourth byte is written too; a fourth byte is read behind the last tap.
void AddTaps(const uint8_t* in, int taps, const int16_t* high, const int16_t* low, uint8_t* out) {
  __m128i high_sum = _mm_setzero_si128(), low_sum = _mm_setzero_si128();
  for (int t = 0; t < taps; t += 2, in += 6) {
    const __m128i second = t + 1 < taps ? Pixel(in + 3) : _mm_setzero_si128();
    const __m128i both = _mm_unpacklo_epi16(Pixel(in), second);
    high_sum = _mm_add_epi32(high_sum, _mm_madd_epi16(both, Pair(high + t)));
    low_sum = _mm_add_epi32(low_sum, _mm_madd_epi16(both, Pair(low + t)));
  }
  const __m128i value = Rounded(high_sum, low_sum);
  const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(value, value));
  std::memcpy(out, &bytes, sizeof(bytes));
}

// Eight bytes at `out` of as many of each row. Rows are `stride` bytes apart.
void AddRows(const uint8_t* rows, int64_t stride, int taps, const int16_t* high, const int16_t* low,
             uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  __m128i high_sums[2] = {zero, zero}, low_sums[2] = {zero, zero};
  const auto row = [&](int t) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows + t * stride)),
                             zero);
  };
  for (int t = 0; t < taps; t += 2) {
    const __m128i first = row(t), second = t + 1 < taps ? row(t + 1) : zero;
    const __m128i high_pair = Pair(high + t), low_pair = Pair(low + t);
    const __m128i both[2] = {_mm_unpacklo_epi16(first, second), _mm_unpackhi_epi16(first, second)};
    for (int half = 0; half < 2; ++half) {
      high_sums[half] = _mm_add_epi32(high_sums[half], _mm_madd_epi16(both[half], high_pair));
      low_sums[half] = _mm_add_epi32(low_sums[half], _mm_madd_epi16(both[half], low_pair));
    }
  }
  const __m128i values =
      _mm_unpacklo_epi64(Rounded(high_sums[0], low_sums[0]), Rounded(high_sums[1], low_sums[1]));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(values, values));
}

#else

uint8_t Rounded(int32_t high, int32_t low) {
  return static_cast<uint8_t>(std::clamp(((high << kLowBits) + low + kHalf) >> kBits, 0, 255));
}

// `values` bytes at `out`, each of the same byte of `taps` that are `stride` bytes apart.
template <int values>
void Add(const uint8_t* in, int64_t stride, int taps, const int16_t* high, const int16_t* low,
         uint8_t* out) {
  int32_t high_sums[values] = {}, low_sums[values] = {};
  for (int t = 0; t < taps; ++t, in += stride) {
    for (int i = 0; i < values; ++i) {
      high_sums[i] += in[i] * high[t];
      low_sums[i] += in[i] * low[t];
    }
  }
  for (int i = 0; i < values; ++i) out[i] = Rounded(high_sums[i], low_sums[i]);
}

void AddTaps(const uint8_t* in, int taps, const int16_t* high, const int16_t* low, uint8_t* out) {
  Add<3>(in, 3, taps, high, low, out);
}

void AddRows(const uint8_t* rows, int64_t stride, int taps, const int16_t* high, const int16_t* low,
             uint8_t* out) {
  Add<8>(rows, stride, taps, high, low, out);
}

#endif

// What AddTaps() and AddRows() may read and write behind the end of a row.
constexpr int64_t kSlack = 8;

// Resamples rows [first, first + count) of the image along them, to `out`, `stride` bytes apart.
void ResampleRows(const RgbImage& image, const Weights& x, int first, int count, int64_t stride,
                  uint8_t* out) {
  std::vector<uint8_t> last;
  for (int y = first; y < first + count; ++y, out += stride) {
    const uint8_t* row = image.row(y);
    if (y + 1 == image.height) {  // nothing may be read behind it
      last.assign(row, row + int64_t{3} * image.width);
      last.resize(last.size() + kSlack);
      row = last.data();
    }
    uint8_t* pixel = out;
    for (size_t i = 0; i < x.taps.size(); ++i, pixel += 3) {
      const Taps taps = x.taps[i];
      AddTaps(row + 3 * taps.begin, taps.count, x.high_of(i), x.low_of(i), pixel);
    }
  }
}

void WritePlanes(const uint8_t* row, int width, bool mirror, int64_t plane, uint8_t* out) {
  for (int c = 0; c < 3; ++c, out += plane) {
    if (mirror) {
      for (int x = 0; x < width; ++x) out[width - 1 - x] = row[3 * x + c];
    } else {
      for (int x = 0; x < width; ++x) out[x] = row[3 * x + c];
    }
  }
}

}  // namespace

void Resample(const RgbImage& image, const ResampleAxis& x, const ResampleAxis& y, bool mirror,
              uint8_t* planes) {
  const Weights across = WeightsOf(x), down = WeightsOf(y);
  const int first = down.taps.front().begin;
  const int rows = down.taps.back().begin + down.taps.back().count - first;
  const int64_t values = int64_t{3} * x.count;
  const int64_t stride = values + kSlack;
  std::vector<uint8_t> narrowed(stride * rows), row(stride);
  ResampleRows(image, across, first, rows, stride, narrowed.data());
  for (int i = 0; i < y.count; ++i) {
    const Taps taps = down.taps[i];
    const uint8_t* const from = narrowed.data() + (taps.begin - first) * stride;
    for (int64_t j = 0; j < values; j += 8) {
      AddRows(from + j, stride, taps.count, down.high_of(i), down.low_of(i), row.data() + j);
    }
    WritePlanes(row.data(), x.count, mirror, int64_t{x.count} * y.count,
                planes + int64_t{i} * x.count);
  }
}

}  // namespace gradsync
