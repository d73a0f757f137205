// A decoded image, and what is cut out of it.

#ifndef GRADSYNC_WORKER_DATA_RGB_IMAGE_H_
#define GRADSYNC_WORKER_DATA_RGB_IMAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/random.h"

namespace gradsync {

// A decoded image: bytes of red, green and blue of each pixel, row by row from the top.
struct RgbImage {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> pixels;  // 3 * width * height

  const uint8_t* row(int y) const { return pixels.data() + int64_t{3} * width * y; }
  uint8_t* row(int y) { return pixels.data() + int64_t{3} * width * y; }
};

struct ImageSize {
  int width = 0;
  int height = 0;
};

struct DecodeOptions {
  // Of a JPEG, an image so many eighths as high and wide, rounded up, which costs a part of the
  // time: pixel x covers what pixels x * 8 / eighths to (x + 1) * 8 / eighths covered. In [1, 8].
  // Other kinds are decoded in full.
  int eighths = 8;
  // How many rows are wanted, from the top, of the image in full; those below need not be decoded.
  // 0: all.
  int rows = 0;
};

// What DecodeImage() made.
struct DecodedImage {
  RgbImage image;   // with fewer rows than the file's where fewer were wanted
  int eighths = 8;  // of the file's size
  // What the library that decodes had to say, the first of it: bytes that make no sense, which it
  // goes on behind, as for Pillow. Empty for most files.
  std::string warning;
};

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

#endif  // GRADSYNC_WORKER_DATA_RGB_IMAGE_H_
