// The largest of a window, and where its gradient goes: the arithmetic of worker/models/pool_kernels.cu,
// which the host can run too.

#ifndef GRADSYNC_WORKER_MODELS_POOL_WINDOW_H_
#define GRADSYNC_WORKER_MODELS_POOL_WINDOW_H_

#include <stddef.h>
#include <stdint.h>

#include "core/gpu/kernel_operands.h"
#include "worker/models/channel_parts.h"

namespace gradsync {

// Windows of 3x3 pixels, 2 apart, with a border of one pixel that is never the largest: window
// (r, c) has the pixels (2r - 1 + k / 3, 2c - 1 + k % 3) for k, its code, in [0, 9).
struct PoolShape {
  static constexpr int kCodes = 9;

  int64_t images = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;  // a multiple of kPart

  GRADSYNC_HOST_DEVICE int64_t rows() const { return (height + 1) / 2; }  // of windows
  GRADSYNC_HOST_DEVICE int64_t columns() const { return (width + 1) / 2; }
  GRADSYNC_HOST_DEVICE int64_t parts() const { return channels / kPart; }
  GRADSYNC_HOST_DEVICE int64_t windows() const { return images * rows() * columns(); }
};

// A window, or a block of 2x2 pixels, of an image.
struct PoolPlace {
  int64_t image, row, column;

  GRADSYNC_HOST_DEVICE int64_t pixel_row(int code) const { return 2 * row - 1 + code / 3; }
  GRADSYNC_HOST_DEVICE int64_t pixel_column(int code) const { return 2 * column - 1 + code % 3; }

  GRADSYNC_HOST_DEVICE bool Has(const PoolShape& shape, int code) const {
    return pixel_row(code) >= 0 && pixel_row(code) < shape.height && pixel_column(code) >= 0 &&
           pixel_column(code) < shape.width;
  }
};

struct Codes {
  uint8_t at[kPart];
};

// Of each channel the largest value, and the code of the first pixel that has it; a NaN is larger
// than all, and of several the last counts, as in LibTorch. `load(code)` is called for those pixels
// that exist.
template <typename Load>
GRADSYNC_HOST_DEVICE inline void LargestOfWindow(const PoolShape& shape, const PoolPlace& window,
                                                 const Load& load, Floats* largest, Codes* codes) {
  bool first = true;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int code = 0; code < PoolShape::kCodes; ++code) {
    if (!window.Has(shape, code)) continue;
    const Floats values = load(code);
    for (int k = 0; k < kPart; ++k) {
      const float value = values.at[k];
      if (first || value > largest->at[k] || value != value) {
        largest->at[k] = value;
        codes->at[k] = static_cast<uint8_t>(code);
      }
    }
    first = false;
  }
}

// The gradient of pixel (2 row + i, 2 column + j) of a block: that of each window which had it as
// its largest. Those are among the windows (row + p, column + q), p <= i, q <= j, which `has(p, q)`
// says whether there are, with `gradient(p, q)` and `codes(p, q)`.
template <typename Has, typename Gradient, typename CodesOf>
GRADSYNC_HOST_DEVICE inline Floats GradientOfPixel(int i, int j, const Has& has,
                                                   const Gradient& gradient, const CodesOf& codes) {
  Floats sum = {};
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int p = 0; p <= 1; ++p) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int q = 0; q <= 1; ++q) {
      if (p > i || q > j || !has(p, q)) continue;
      const int code = (i - 2 * p + 1) * 3 + j - 2 * q + 1;
      const Floats& gradients = gradient(p, q);
      const Codes& largest = codes(p, q);
      for (int k = 0; k < kPart; ++k) {
        if (largest.at[k] == code) sum.at[k] += gradients.at[k];
      }
    }
  }
  return sum;
}

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_POOL_WINDOW_H_
