#include "worker/data/synthetic_dataset.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"

namespace gradsync {
namespace {

constexpr int kClasses = 10;
constexpr int kGrid = 5;          // A pattern is kGrid x kGrid random colours, interpolated.
constexpr int kPatternPeak = 48;  // Of 127: how far a pattern moves a pixel at contrast 1.
constexpr int kNoisePeak = 100;   // Noise is triangular in +-kNoisePeak.
constexpr int kBrightnessPeak = 24;

constexpr uint64_t kPatternPurpose = 0x7061747465726e73;
constexpr uint64_t kTrainPurpose = 0x747261696e;
constexpr uint64_t kTestPurpose = 0x74657374;

int Uniform(RandomStream& random, int low, int high) {
  return low + static_cast<int>(random.Below(static_cast<uint64_t>(high - low + 1)));
}

// Bilinear interpolation of `grid` at pixel (y, x), in integers: the grid's corners lie on the
// image's corners.
int Interpolate(const std::array<int, kGrid * kGrid>& grid, int y, int x, int height, int width) {
  const int ny = y * (kGrid - 1), nx = x * (kGrid - 1);
  const int dy = height - 1, dx = width - 1;
  const int gy = std::min(ny / dy, kGrid - 2), gx = std::min(nx / dx, kGrid - 2);
  const int fy = ny - gy * dy, fx = nx - gx * dx;
  const int* corner = &grid[gy * kGrid + gx];
  const int top = corner[0] * (dx - fx) + corner[1] * fx;
  const int bottom = corner[kGrid] * (dx - fx) + corner[kGrid + 1] * fx;
  return (top * (dy - fy) + bottom * fy) / (dx * dy);
}

std::vector<int8_t> MakePatterns(uint64_t seed, const ImageShape& shape) {
  std::vector<int8_t> patterns;
  patterns.reserve(kClasses * shape.bytes());
  RandomStream random(kPatternPurpose, seed);
  for (int plane = 0; plane < kClasses * shape.channels; ++plane) {
    std::array<int, kGrid * kGrid> grid;
    for (int& value : grid) value = Uniform(random, -kPatternPeak, kPatternPeak);
    for (int y = 0; y < shape.height; ++y) {
      for (int x = 0; x < shape.width; ++x) {
        patterns.push_back(static_cast<int8_t>(Interpolate(grid, y, x, shape.height, shape.width)));
      }
    }
  }
  return patterns;
}

// Values are drawn in blocks: first the noise of all, then the pixels, in 16-bit integers and with
// bounds that the compiler knows, so that it makes vector instructions of both loops.
constexpr int64_t kBlock = 256;

template <int64_t kCount>
void DrawPixels(RandomStream& random, const int8_t* pattern, int contrast, int brightness,
                uint8_t* pixels) {
  std::array<uint16_t, kCount> noise;        // two uniform bytes each
  for (int64_t i = 0; i < kCount; i += 4) {  // One draw makes the noise of four pixels.
    const uint64_t bits = random.Next();
    for (int64_t k = 0; k < 4; ++k) noise[i + k] = static_cast<uint16_t>(bits >> (16 * k));
  }
  for (int64_t i = 0; i < kCount; ++i) {
    const int16_t triangular = static_cast<int16_t>((noise[i] & 255) - (noise[i] >> 8));
    const int16_t amplitude = static_cast<int16_t>(triangular * kNoisePeak);
    const int16_t signal = static_cast<int16_t>(pattern[i] * contrast);
    const int16_t value = static_cast<int16_t>(brightness + signal / 128 + amplitude / 256);
    pixels[i] = static_cast<uint8_t>(std::clamp<int16_t>(value, 0, 255));
  }
}

int64_t DefaultSize(Split split) { return split == Split::kTrain ? 50000 : 10000; }

}  // namespace

SyntheticDataset::SyntheticDataset(const Options& options)
    : options_(options),
      size_(options.size > 0 ? options.size : DefaultSize(options.split)),
      patterns_(MakePatterns(options.seed, {3, options.pixels, options.pixels})) {}

int SyntheticDataset::classes() const { return kClasses; }

DataIdentity SyntheticDataset::identity() const {
  DataIdentity identity;
  identity.what =
      absl::StrCat("synthetic of ", size_, " images of ", options_.pixels, "x", options_.pixels,
                   " pixels in ", kClasses, " classes, seed ", options_.seed);
  return identity;
}

absl::StatusOr<ImageExample> SyntheticDataset::Get(int64_t index,
                                                   absl::Span<uint8_t> scratch) const {
  RandomStream random(options_.split == Split::kTrain ? kTrainPurpose : kTestPurpose, options_.seed,
                      static_cast<uint64_t>(index));
  const int label = Uniform(random, 0, kClasses - 1);
  const int contrast = Uniform(random, 64, 128);  // Of 128.
  const int brightness = 128 + Uniform(random, -kBrightnessPeak, kBrightnessPeak);
  const int64_t bytes = shape().bytes();
  const int8_t* pattern = &patterns_[label * bytes];
  uint8_t* pixels = scratch.data();
  int64_t done = 0;
  for (; done + kBlock <= bytes; done += kBlock) {
    DrawPixels<kBlock>(random, pattern + done, contrast, brightness, pixels + done);
  }
  for (; done < bytes; done += 4) {
    DrawPixels<4>(random, pattern + done, contrast, brightness, pixels + done);
  }
  return ImageExample{pixels, label};
}

}  // namespace gradsync
