#ifndef GRADSYNC_WORKER_DATA_RANDOM_CROP_H_
#define GRADSYNC_WORKER_DATA_RANDOM_CROP_H_

#include "core/base/random.h"
#include "worker/data/rgb_image.h"

namespace gradsync {

// A part of an image, in pixels.
struct CropBox {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
};

// What torchvision's RandomResizedCrop cuts out of an image: 8 to 100 % of its area, 3:4 to 4:3 in
// shape (uniform in the logarithm), anywhere in it; the shape is drawn up to ten times until it
// fits, and then the largest centred part of an allowed shape is taken. Ours draws from `random`,
// by arithmetic that gives the same box on every machine. Thread-safe; does not block.
CropBox RandomResizedCrop(const ImageSize& image, RandomStream& random);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_RANDOM_CROP_H_
