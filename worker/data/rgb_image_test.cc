#include "worker/data/rgb_image.h"

#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RandomCropTest, BoxesLieInTheImageAndHaveAllowedAreasAndShapes) {
  for (const ImageSize size : {ImageSize{500, 375}, ImageSize{224, 224}, ImageSize{300, 400}}) {
    int lefts = 0;
    for (int i = 0; i < 2000; ++i) {
      RandomStream random(1, 2, i);
      const CropBox box = RandomResizedCrop(size, random);
      ASSERT_GE(box.left, 0);
      ASSERT_GE(box.top, 0);
      ASSERT_LE(box.left + box.width, size.width);
      ASSERT_LE(box.top + box.height, size.height);
      const double area = static_cast<double>(box.width) * box.height / size.width / size.height;
      EXPECT_GT(area, 0.078);
      EXPECT_LT(area, 1.005);
      const double shape = static_cast<double>(box.width) / box.height;
      EXPECT_GT(shape, 0.75 - 0.02);
      EXPECT_LT(shape, 4.0 / 3 + 0.02);
      lefts += 2 * box.left + box.width < size.width;
    }
    EXPECT_NEAR(lefts, 1000, 6 * 23);
  }
}

// Half of all areas are below the middle of 8 and 100 %, and shapes are as often high as wide.
TEST(RandomCropTest, AreasAndShapesAreUniformWhereAllFit) {
  int small = 0, wide = 0;
  for (int i = 0; i < 4000; ++i) {
    RandomStream random(3, 4, i);
    const CropBox box = RandomResizedCrop({3000, 3000}, random);
    const double area = static_cast<double>(box.width) * box.height / 9e6;
    small += area < 0.3;
    wide += box.width > box.height;
  }
  EXPECT_NEAR(wide, 2000, 6 * 32);
  // Boxes that do not fit, of nearly the whole image, are drawn again: the share is a little more
  // than (0.3 - 0.08) / 0.92.
  EXPECT_GT(small, 4000 * 0.22);
  EXPECT_LT(small, 4000 * 0.33);
}

TEST(RandomCropTest, WhereNothingFitsTheLargestCentredPartIsTaken) {
  RandomStream random(1, 2);
  CropBox box = RandomResizedCrop({1000, 3}, random);
  EXPECT_EQ(box.height, 3);
  EXPECT_EQ(box.width, 4);
  EXPECT_EQ(box.left, 498);
  box = RandomResizedCrop({3, 1000}, random);
  EXPECT_EQ(box.width, 3);
  EXPECT_EQ(box.height, 4);
  EXPECT_EQ(box.top, 498);
  box = RandomResizedCrop({1, 1}, random);
  EXPECT_EQ(box.width, 1);
  EXPECT_EQ(box.height, 1);
}

TEST(RandomCropTest, BoxesNeverChangeBetweenBuilds) {
  RandomStream random(1, 2, 3, 4);
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (int i = 0; i < 1000; ++i) {
    const CropBox box = RandomResizedCrop({500, 375}, random);
    for (int value : {box.left, box.top, box.width, box.height}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211u;
    }
  }
  EXPECT_EQ(hash, 17732551752192606271u);
}

}  // namespace
}  // namespace gradsync
