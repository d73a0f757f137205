#include "worker/data/augment.h"

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::vector<uint8_t> RandomImage(const ImageShape& shape) {
  std::vector<uint8_t> pixels(shape.bytes());
  RandomStream random(1, 2);
  for (uint8_t& p : pixels) p = static_cast<uint8_t>(random.Next());
  return pixels;
}

// The definition, step by step: pad, crop, flip, divide by 255, normalise.
std::vector<float> Reference(const ImageShape& s, const AugmentOptions& o, int crop_y, int crop_x,
                             bool flip, const std::vector<uint8_t>& pixels) {
  const int padded_h = s.height + 2 * o.padding, padded_w = s.width + 2 * o.padding;
  std::vector<uint8_t> padded(s.channels * padded_h * padded_w, 0);
  for (int c = 0; c < s.channels; ++c) {
    for (int y = 0; y < s.height; ++y) {
      for (int x = 0; x < s.width; ++x) {
        padded[(c * padded_h + y + o.padding) * padded_w + x + o.padding] =
            pixels[(c * s.height + y) * s.width + x];
      }
    }
  }
  std::vector<float> out;
  for (int c = 0; c < s.channels; ++c) {
    for (int y = 0; y < s.height; ++y) {
      for (int x = 0; x < s.width; ++x) {
        const int column = flip ? s.width - 1 - x : x;
        const uint8_t byte = padded[(c * padded_h + y + crop_y) * padded_w + column + crop_x];
        float value = byte;
        value /= 255;
        value -= o.normalisation.mean[c];
        value /= o.normalisation.deviation[c];
        out.push_back(value);
      }
    }
  }
  return out;
}

// Every possible outcome of the reference must occur, and nothing else.
void ExpectExactlyTheReferences(const ImageShape& shape, const AugmentOptions& options,
                                int samples) {
  const std::vector<uint8_t> pixels = RandomImage(shape);
  std::set<std::vector<float>> expected;
  for (int y = 0; y <= 2 * options.padding; ++y) {
    for (int x = 0; x <= 2 * options.padding; ++x) {
      expected.insert(Reference(shape, options, y, x, false, pixels));
      if (options.flip) expected.insert(Reference(shape, options, y, x, true, pixels));
    }
  }
  const Augmenter augmenter(shape, options);
  std::set<std::vector<float>> found;
  for (int sample = 0; sample < samples; ++sample) {
    std::vector<float> out(shape.bytes(), -1000);
    augmenter.Train({/*seed=*/9, /*epoch=*/3, sample}, pixels.data(), out.data());
    found.insert(std::move(out));
  }
  EXPECT_TRUE(found == expected) << found.size() << " outcomes, expected " << expected.size();
}

TEST(AugmentTest, TrainGivesEveryCropAndFlipOfThePlainDefinition) {
  ExpectExactlyTheReferences(ImageShape{}, AugmentOptions{}, 3000);
}

TEST(AugmentTest, TrainFollowsItsOptionsOnOtherShapes) {
  AugmentOptions options;
  options.padding = 0;
  ExpectExactlyTheReferences({3, 5, 7}, options, 50);
  options.flip = false;
  ExpectExactlyTheReferences({1, 5, 7}, options, 5);
  options.padding = 3;  // Wider than the image is high: some crops see no image row at all.
  ExpectExactlyTheReferences({2, 2, 4}, options, 2000);
}

TEST(AugmentTest, EvaluateOnlyNormalises) {
  const ImageShape shape;
  const std::vector<uint8_t> pixels = RandomImage(shape);
  std::vector<float> out(shape.bytes());
  Augmenter(shape, AugmentOptions{}).Evaluate(pixels.data(), out.data());
  EXPECT_EQ(out, Reference(shape, AugmentOptions{}, 4, 4, false, pixels));
}

TEST(AugmentTest, BytesHaveTheCropAndFlipOfTheFloatsAndTheirValues) {
  for (const ImageShape& shape : {ImageShape{}, ImageShape{2, 2, 4}}) {
    const std::vector<uint8_t> pixels = RandomImage(shape);
    const Augmenter augmenter(shape, AugmentOptions{});
    for (int64_t sample = 0; sample < 300; ++sample) {
      std::vector<float> floats(shape.bytes());
      std::vector<uint8_t> bytes(shape.bytes());
      augmenter.Train({1, 2, sample}, pixels.data(), floats.data());
      augmenter.TrainBytes({1, 2, sample}, pixels.data(), bytes.data());
      for (size_t i = 0; i < bytes.size(); ++i) {
        const size_t channel = i / (shape.height * shape.width);
        ASSERT_EQ(augmenter.values()[channel][bytes[i]], floats[i]) << sample << " " << i;
      }
    }
  }
}

TEST(AugmentTest, ChoicesDependOnSeedEpochAndSampleOnly) {
  const ImageShape shape;
  const std::vector<uint8_t> pixels = RandomImage(shape);
  const Augmenter augmenter(shape, AugmentOptions{});
  auto augment = [&](const AugmentKey& key) {
    std::vector<float> out(shape.bytes());
    augmenter.Train(key, pixels.data(), out.data());
    return out;
  };
  int differs_by_seed = 0, differs_by_epoch = 0, differs_by_sample = 0;
  for (int i = 0; i < 200; ++i) {
    const std::vector<float> out = augment({1, 2, i});
    EXPECT_EQ(augment({1, 2, i}), out);
    differs_by_seed += augment({2, 2, i}) != out;
    differs_by_epoch += augment({1, 3, i}) != out;
    differs_by_sample += augment({1, 2, i + 1}) != out;
  }
  EXPECT_GT(differs_by_seed, 190);  // 1 in 162 is equal by chance.
  EXPECT_GT(differs_by_epoch, 190);
  EXPECT_GT(differs_by_sample, 190);
}

}  // namespace
}  // namespace gradsync
