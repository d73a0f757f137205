#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gradsync {
namespace {

constexpr int kBits = 22;  // 8 of a byte, 2 for sums of many, and these make 32
constexpr int kHalf = 1 << (kBits - 1);
// Coefficients are multiplied in two parts, whose products with a byte fit where the compiler has
// vector instructions for them.
constexpr int kLowBits = 11;

// The input pixels of one output pixel, and their weights, in a row of Weights::values.
struct Taps {
  int begin = 0;
  int count = 0;
};

struct Weights {
  std::vector<Taps> taps;
  std::vector<int32_t> values;  // `most` for each
  int most = 0;

  const int32_t* of(int i) const { return values.data() + int64_t{most} * i; }
};

Weights WeightsOf(const ResampleAxis& axis) {
  const double filter_scale = std::max(axis.step, 1.0);
  Weights weights;
  weights.taps.resize(axis.count);
  weights.most = static_cast<int>(std::ceil(filter_scale)) * 2 + 1;
  weights.values.resize(int64_t{weights.most} * axis.count);
  std::vector<double> triangle(weights.most);
  for (int i = 0; i < axis.count; ++i) {
    const double centre = axis.origin + (axis.first + i + 0.5) * axis.step;
    const int begin = std::clamp(static_cast<int>(std::floor(centre - filter_scale + 0.5)),
                                 axis.low, axis.high - 1);
    const int end =
        std::clamp(static_cast<int>(std::floor(centre + filter_scale + 0.5)), begin + 1, axis.high);
    const int count = std::min(end - begin, weights.most);
    double sum = 0;
    for (int t = 0; t < count; ++t) {
      const double distance = std::abs((begin + t - centre + 0.5) * (1.0 / filter_scale));
      triangle[t] = distance < 1 ? 1 - distance : 0;
      sum += triangle[t];
    }
    weights.taps[i] = {begin, count};
    int32_t* const values = weights.values.data() + int64_t{weights.most} * i;
    for (int t = 0; t < count; ++t) {
      values[t] = static_cast<int32_t>(0.5 + triangle[t] / sum * (1 << kBits));
    }
  }
  return weights;
}

uint8_t ToByte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp((sum + kHalf) >> kBits, 0, 255));
}

// Row after row of `rows` of the image, each x.taps.size() pixels long.
void ResampleRows(const RgbImage& image, const Weights& x, int first_row, int rows, uint8_t* out) {
  const int width = static_cast<int>(x.taps.size());
  for (int y = first_row; y < first_row + rows; ++y) {
    const uint8_t* const row = image.row(y);
    for (int i = 0; i < width; ++i, out += 3) {
      const uint8_t* in = row + 3 * x.taps[i].begin;
      const int32_t* const weight = x.of(i);
      int32_t red = 0, green = 0, blue = 0;
      for (int t = 0; t < x.taps[i].count; ++t, in += 3) {
        red += weight[t] * in[0];
        green += weight[t] * in[1];
        blue += weight[t] * in[2];
      }
      out[0] = ToByte(red);
      out[1] = ToByte(green);
      out[2] = ToByte(blue);
    }
  }
}

// One output row: `rows` are `stride` bytes apart, of which the first is that of the first tap.
void ResampleColumns(const uint8_t* rows, int64_t stride, const int32_t* weights, int taps,
                     int32_t* high, int32_t* low, uint8_t* out) {
  std::fill(high, high + stride, 0);
  std::fill(low, low + stride, 0);
  for (int t = 0; t < taps; ++t, rows += stride) {
    const int16_t high_weight = static_cast<int16_t>(weights[t] >> kLowBits);
    const int16_t low_weight = static_cast<int16_t>(weights[t] & ((1 << kLowBits) - 1));
    for (int64_t j = 0; j < stride; ++j) {
      const int16_t value = rows[j];
      high[j] += static_cast<int32_t>(value) * high_weight;
      low[j] += static_cast<int32_t>(value) * low_weight;
    }
  }
  for (int64_t j = 0; j < stride; ++j) out[j] = ToByte((high[j] << kLowBits) + low[j]);
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
  const int first_row = down.taps.front().begin;
  const int rows = down.taps.back().begin + down.taps.back().count - first_row;
  const int64_t stride = int64_t{3} * x.count;
  std::vector<uint8_t> narrowed(stride * rows), row(stride);
  ResampleRows(image, across, first_row, rows, narrowed.data());
  std::vector<int32_t> high(stride), low(stride);
  const int64_t plane = int64_t{x.count} * y.count;
  for (int i = 0; i < y.count; ++i) {
    const Taps taps = down.taps[i];
    ResampleColumns(narrowed.data() + (taps.begin - first_row) * stride, stride, down.of(i),
                    taps.count, high.data(), low.data(), row.data());
    WritePlanes(row.data(), x.count, mirror, plane, planes + int64_t{i} * x.count);
  }
}

}  // namespace gradsync
