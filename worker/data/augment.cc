#include "worker/data/augment.h"

#include <algorithm>

#include "core/base/random.h"

namespace gradsync {
namespace {
constexpr uint64_t kPurpose = 0x6175676d656e74;
}  // namespace

AugmentOptions AugmentationOf(const ImageDataset& dataset) {
  AugmentOptions options;
  options.normalisation = dataset.normalisation();
  return options;
}

Augmenter::Augmenter(const ImageShape& shape, const AugmentOptions& options)
    : shape_(shape), options_(options) {
  for (size_t c = 0; c < values_.size(); ++c) {
    for (int byte = 0; byte < 256; ++byte) {
      values_[c][byte] = (static_cast<float>(byte) / 255.0f - options.normalisation.mean[c]) /
                         options.normalisation.deviation[c];
    }
  }
}

void Augmenter::Train(const AugmentKey& key, const uint8_t* pixels, float* out) const {
  Write(Choose(key), pixels, out, [this](int c, uint8_t byte) { return values_[c][byte]; });
}

void Augmenter::TrainBytes(const AugmentKey& key, const uint8_t* pixels, uint8_t* out) const {
  Write(Choose(key), pixels, out, [](int, uint8_t byte) { return byte; });
}

void Augmenter::Evaluate(const uint8_t* pixels, float* out) const {
  Write({}, pixels, out, [this](int c, uint8_t byte) { return values_[c][byte]; });
}

Augmenter::Choice Augmenter::Choose(const AugmentKey& key) const {
  RandomStream random(kPurpose, key.seed, static_cast<uint64_t>(key.epoch),
                      static_cast<uint64_t>(key.sample));
  const int padding = options_.padding;
  Choice choice;
  choice.top = static_cast<int>(random.Below(2 * padding + 1)) - padding;
  choice.left = static_cast<int>(random.Below(2 * padding + 1)) - padding;
  choice.flip = options_.flip && (random.Next() >> 63) != 0;
  return choice;
}

template <typename Out, typename Value>
void Augmenter::Write(const Choice& choice, const uint8_t* pixels, Out* out,
                      const Value& value) const {
  const int height = shape_.height, width = shape_.width;
  // Columns [begin, end) of a row come from the image; the rest is padding.
  const int begin = std::clamp(-choice.left, 0, width);
  const int end = std::clamp(width - choice.left, begin, width);
  for (int c = 0; c < shape_.channels; ++c, pixels += height * width) {
    const Out black = value(c, 0);
    for (int y = 0; y < height; ++y, out += width) {
      const int from = y + choice.top;
      if (from < 0 || from >= height) {
        std::fill(out, out + width, black);
        continue;
      }
      const uint8_t* row = pixels + from * width;
      if (choice.flip) {
        std::fill(out, out + (width - end), black);
        for (int x = begin; x < end; ++x) out[width - 1 - x] = value(c, row[x + choice.left]);
        std::fill(out + (width - begin), out + width, black);
      } else {
        std::fill(out, out + begin, black);
        for (int x = begin; x < end; ++x) out[x] = value(c, row[x + choice.left]);
        std::fill(out + end, out + width, black);
      }
    }
  }
}

}  // namespace gradsync
