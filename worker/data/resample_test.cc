#include "worker/data/resample.h"

#include <cstdint>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

RgbImage RandomImage(int width, int height) {
  RgbImage image = {width, height, std::vector<uint8_t>(3 * width * height)};
  RandomStream random(1, 2);
  for (uint8_t& value : image.pixels) value = static_cast<uint8_t>(random.Next());
  return image;
}

ResampleAxis Whole(int pixels, int count) {
  return {0, static_cast<double>(pixels) / count, 0, count, 0, pixels};
}

// image_folder_test compares with Pillow.

TEST(ResampleTest, AnImageOfItsOwnSizeStaysWhatItIs) {
  const RgbImage image = RandomImage(7, 5);
  std::vector<uint8_t> planes(3 * 7 * 5);
  Resample(image, Whole(7, 7), Whole(5, 5), false, planes.data());
  for (int i = 0; i < 7 * 5; ++i) {
    for (int c = 0; c < 3; ++c) ASSERT_EQ(planes[c * 35 + i], image.pixels[3 * i + c]);
  }
}

TEST(ResampleTest, OneColourStaysThatColour) {
  const RgbImage image = {13, 9, std::vector<uint8_t>(3 * 13 * 9, 255)};
  for (const int size : {1, 2, 8, 40}) {
    std::vector<uint8_t> planes(3 * size * size);
    Resample(image, Whole(13, size), Whole(9, size), true, planes.data());
    EXPECT_THAT(planes, Each(255)) << size;
  }
}

TEST(ResampleTest, PixelsOutsideTheBoundsAreNotSeen) {
  RgbImage image = {9, 1, std::vector<uint8_t>(27, 200)};
  for (int i = 9; i < 18; ++i) image.pixels[i] = 10;  // pixels 3 to 5
  std::vector<uint8_t> planes(3);
  Resample(image, {3, 3, 0, 1, 3, 6}, Whole(1, 1), false, planes.data());
  EXPECT_THAT(planes, ElementsAre(10, 10, 10));
  Resample(image, {3, 3, 0, 1, 0, 9}, Whole(1, 1), false, planes.data());
  EXPECT_THAT(planes, Each(::testing::Gt(10)));
}

TEST(ResampleTest, APartOfAResizedImageIsThatPartOfTheWhole) {
  const RgbImage image = RandomImage(50, 1);
  std::vector<uint8_t> whole(3 * 21), part(3 * 10);
  ResampleAxis axis = Whole(50, 21);
  Resample(image, axis, Whole(1, 1), false, whole.data());
  axis.first = 6;
  axis.count = 10;
  Resample(image, axis, Whole(1, 1), false, part.data());
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 10; ++i) EXPECT_EQ(part[10 * c + i], whole[21 * c + 6 + i]);
  }
}

}  // namespace
}  // namespace gradsync
