// Antialiased bilinear resampling, to the byte as Pillow's resize(BILINEAR, box=...) computes it:
// first along rows, then along columns, each rounded to bytes, with coefficients of 22 bits.
//
// An output pixel is the mean of the input pixels within `step` of its centre (within one where
// step is less than 1), weighted by a triangle.
#ifndef GRADSYNC_WORKER_DATA_RESAMPLE_H_
#define GRADSYNC_WORKER_DATA_RESAMPLE_H_

#include <cstdint>

#include "worker/data/rgb_image.h"

namespace gradsync {

// How output pixels lie on one axis of the input: the centre of pixel i at
// origin + (first + i + 0.5) * step, in pixels of the input.
struct ResampleAxis {
  double origin = 0;
  double step = 1;  // above 0
  int first = 0;
  int count = 0;  // of output pixels, at least 1
  // Input pixels that may be looked at: [low, high), inside the image, and all centres in it.
  // Output pixels near its ends are means of fewer.
  int low = 0;
  int high = 0;
};

// Writes y.count rows of x.count pixels, red plane first, then green and blue, to `planes`. With
// `mirror` each row is written from right to left. Thread-safe.
void Resample(const RgbImage& image, const ResampleAxis& x, const ResampleAxis& y, bool mirror,
              uint8_t* planes);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_RESAMPLE_H_
