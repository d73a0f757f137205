// From an image's bytes to a model's input: the usual CIFAR-10 recipe.
//
// Training: RandomCrop(32, padding 4), a horizontal flip with probability 1/2, ToTensor, Normalize.
// Evaluation: ToTensor, Normalize. Crop and flip of a sample are a pure function of (seed, epoch,
// sample index): neither threads, nor batch size, nor world size, nor a restart change them.
#ifndef GRADSYNC_WORKER_DATA_AUGMENT_H_
#define GRADSYNC_WORKER_DATA_AUGMENT_H_

#include <array>
#include <cstdint>

#include "worker/data/dataset.h"

namespace gradsync {

struct AugmentOptions {
  int padding = 4;   // Black pixels added on each side before the crop; 0: no crop. In [0, 64].
  bool flip = true;  // Whether half of the images are mirrored.
  Normalisation normalisation;
};

// As AugmentOptions are by default, with the dataset's own normalisation.
AugmentOptions AugmentationOf(const ImageDataset& dataset);

// Immutable; thread-safe; no call allocates, blocks or fails.
class Augmenter {
 public:
  // The float of each byte, per channel.
  using ByteValues = std::array<std::array<float, 256>, 3>;

  // `shape` must have at most 3 channels.
  Augmenter(const ImageShape& shape, const AugmentOptions& options);

  // Writes the augmented, normalised image (CHW, shape.bytes() floats) to `out`.
  void Train(const AugmentKey& key, const uint8_t* pixels, float* out) const;

  // The same crop and flip, before anything is normalised: values() of the bytes written are what
  // Train() writes.
  void TrainBytes(const AugmentKey& key, const uint8_t* pixels, uint8_t* out) const;

  // Writes the normalised image to `out`: what Train() writes for a centred crop without a flip.
  void Evaluate(const uint8_t* pixels, float* out) const;

  // (byte / 255 - mean) / deviation, each operation rounded to float as torchvision's ToTensor and
  // Normalize round it, so the values are equal to theirs.
  const ByteValues& values() const { return values_; }

 private:
  struct Choice {
    int top = 0, left = 0;  // Offset of the crop in the image, in [-padding, padding].
    bool flip = false;
  };
  Choice Choose(const AugmentKey& key) const;
  // value(c, byte) is written for each byte of channel c.
  template <typename Out, typename Value>
  void Write(const Choice& choice, const uint8_t* pixels, Out* out, const Value& value) const;

  const ImageShape shape_;
  const AugmentOptions options_;
  ByteValues values_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_AUGMENT_H_
