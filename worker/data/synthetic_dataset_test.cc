#include "worker/data/synthetic_dataset.h"

#include <array>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

struct Image {
  std::vector<uint8_t> pixels;
  int label;
};

Image Read(const ImageDataset& dataset, int64_t index) {
  Image image{std::vector<uint8_t>(dataset.shape().bytes()), -1};
  const ImageExample example = dataset.Get(index, absl::MakeSpan(image.pixels)).value();
  EXPECT_EQ(example.pixels, image.pixels.data());
  image.label = example.label;
  return image;
}

TEST(SyntheticDatasetTest, HasTheShapeOfCifar10) {
  const SyntheticDataset train({/*seed=*/1, Split::kTrain});
  const SyntheticDataset test({/*seed=*/1, Split::kTest});
  EXPECT_EQ(train.size(), 50000);
  EXPECT_EQ(test.size(), 10000);
  EXPECT_EQ(train.classes(), 10);
  EXPECT_EQ(train.shape().bytes(), 3072);
  EXPECT_EQ(SyntheticDataset({1, Split::kTest, 17}).size(), 17);
}

TEST(SyntheticDatasetTest, ImageDependsOnSeedSplitAndIndexOnly) {
  const SyntheticDataset a({/*seed=*/1, Split::kTrain});
  const SyntheticDataset b({/*seed=*/1, Split::kTrain, /*size=*/100});
  EXPECT_EQ(Read(a, 42).pixels, Read(b, 42).pixels);
  EXPECT_EQ(Read(a, 42).label, Read(b, 42).label);
  EXPECT_NE(Read(a, 42).pixels, Read(a, 43).pixels);
  EXPECT_NE(Read(a, 42).pixels, Read(SyntheticDataset({2, Split::kTrain}), 42).pixels);
  EXPECT_NE(Read(a, 42).pixels, Read(SyntheticDataset({1, Split::kTest}), 42).pixels);
}

TEST(SyntheticDatasetTest, BytesNeverChangeBetweenBuilds) {
  const SyntheticDataset dataset({/*seed=*/1, Split::kTrain});
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (int64_t i = 0; i < 100; ++i) {
    const Image image = Read(dataset, i);
    hash = (hash ^ static_cast<uint64_t>(image.label)) * 1099511628211u;
    for (uint8_t p : image.pixels) hash = (hash ^ p) * 1099511628211u;
  }
  EXPECT_EQ(hash, 1783530728365404760u);
}

// Large images, and one whose values are no multiple of the blocks that are drawn at a time.
TEST(SyntheticDatasetTest, BytesOfOtherSizesNeverChangeEither) {
  const auto hash_of = [](int pixels) {
    const SyntheticDataset dataset({/*seed=*/1, Split::kTrain, /*size=*/0, pixels});
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (int64_t i = 0; i < 10; ++i) {
      for (uint8_t p : Read(dataset, i).pixels) hash = (hash ^ p) * 1099511628211u;
    }
    return hash;
  };
  EXPECT_EQ(hash_of(10), 8009102039214888080u);
  EXPECT_EQ(hash_of(224), 7438189360895908439u);
}

TEST(SyntheticDatasetTest, EveryClassOccursAboutEquallyOften) {
  const SyntheticDataset dataset({/*seed=*/3, Split::kTrain});
  std::array<int, 10> count{};
  for (int64_t i = 0; i < 5000; ++i) ++count[Read(dataset, i).label];
  for (int c : count) EXPECT_NEAR(c, 500, 6 * 21);
}

// A nearest-mean classifier fitted on the training split must do well on the test split (the data
// can be learned), while a single image must not give its class away pixel by pixel.
TEST(SyntheticDatasetTest, ClassesCanBeLearnedFromTrainAndRecognisedInTest) {
  const SyntheticDataset train({/*seed=*/5, Split::kTrain});
  const SyntheticDataset test({/*seed=*/5, Split::kTest});
  std::vector<std::array<double, 3072>> mean(10);
  std::array<int, 10> count{};
  for (auto& m : mean) m.fill(0);
  for (int64_t i = 0; i < 2000; ++i) {
    const Image image = Read(train, i);
    ++count[image.label];
    for (int p = 0; p < 3072; ++p) mean[image.label][p] += image.pixels[p];
  }
  int correct = 0;
  for (int64_t i = 0; i < 500; ++i) {
    const Image image = Read(test, i);
    int best = -1;
    double best_distance = 0;
    for (int c = 0; c < 10; ++c) {
      double distance = 0;
      for (int p = 0; p < 3072; ++p) {
        const double d = image.pixels[p] - mean[c][p] / count[c];
        distance += d * d;
      }
      if (best < 0 || distance < best_distance) {
        best = c;
        best_distance = distance;
      }
    }
    correct += best == image.label;
  }
  EXPECT_GT(correct, 450);
}

}  // namespace
}  // namespace gradsync
