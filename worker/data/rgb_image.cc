#include "worker/data/rgb_image.h"

#include <cmath>

namespace gradsync {
namespace {

constexpr int kTries = 10;
constexpr double kLeastArea = 0.08;
constexpr double kLogOfWidest = 0.28768207245178093;  // of 4/3; that of 3/4 is its negative

// Uniform in [0, 1).
double Uniform(RandomStream& random) { return static_cast<double>(random.Next() >> 11) * 0x1p-53; }

// e^x for |x| < 0.3, by its series: the C library's may differ from machine to machine in its last
// bit.
double Exp(double x) {
  double sum = 1, term = 1;
  for (int k = 1; k <= 14; ++k) {
    term *= x / k;
    sum += term;
  }
  return sum;
}

// Python's round(), half to even.
int Round(double value) { return static_cast<int>(std::nearbyint(value)); }

}  // namespace

CropBox RandomResizedCrop(const ImageSize& image, RandomStream& random) {
  const double area = static_cast<double>(image.width) * image.height;
  for (int i = 0; i < kTries; ++i) {
    const double part = area * (kLeastArea + (1 - kLeastArea) * Uniform(random));
    const double aspect = Exp(kLogOfWidest * (2 * Uniform(random) - 1));
    CropBox box;
    box.width = Round(std::sqrt(part * aspect));
    box.height = Round(std::sqrt(part / aspect));
    if (box.width < 1 || box.width > image.width) continue;
    if (box.height < 1 || box.height > image.height) continue;
    box.top = static_cast<int>(random.Below(image.height - box.height + 1));
    box.left = static_cast<int>(random.Below(image.width - box.width + 1));
    return box;
  }
  CropBox box = {0, 0, image.width, image.height};
  if (4.0 * image.width < 3.0 * image.height) {
    box.height = Round(image.width / 0.75);
  } else if (3.0 * image.width > 4.0 * image.height) {
    box.width = Round(image.height * (4.0 / 3.0));
  }
  box.left = (image.width - box.width) / 2;
  box.top = (image.height - box.height) / 2;
  return box;
}

}  // namespace gradsync
