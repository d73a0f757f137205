// Images as MNIST has them, 28x28 pixels of ten classes, but made up: a class is a pattern, an image
// that pattern with noise.

#ifndef DIGITS_H_
#define DIGITS_H_

#include <torch/torch.h>

#include <cstdint>

struct Digits {
  torch::Tensor images;  // [size, 784]
  torch::Tensor labels;  // [size]

  static Digits Make(int64_t size) {
    const torch::Tensor labels = torch::arange(size) % 10;
    const torch::Tensor patterns = torch::rand({10, 28 * 28});
    return {patterns.index_select(0, labels) + 0.5 * torch::randn({size, 28 * 28}), labels};
  }

  int64_t size() const { return labels.size(0); }

  // The part of one of several ranks, all of equal size.
  Digits Part(int rank, int ranks) const {
    const int64_t part = size() / ranks;
    return {images.narrow(0, rank * part, part), labels.narrow(0, rank * part, part)};
  }
};

#endif  // DIGITS_H_
