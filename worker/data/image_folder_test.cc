// Compares with Python's Pillow, which makes the images too: worker/data/testdata/make_images.py.

#include "worker/data/image_folder.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/decode_image.h"
#include "worker/data/resample.h"
#include "worker/data/rgb_image.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int kSkip = 77;

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteBytes(const std::string& path, absl::string_view bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

absl::string_view BytesOf(const std::vector<uint8_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size()};
}

// A folder of what the script makes; `what` as it takes it.
class ImageFolderTest : public ::testing::Test {
 protected:
  void Make(const std::string& what) {
    const int status = std::system(
        absl::StrCat("/usr/bin/python3 worker/data/testdata/make_images.py ", what, " ", path())
            .c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == kSkip) GTEST_SKIP() << "needs python3-pil, which tools/setup installs";
    ASSERT_EQ(code, 0);
  }

  const std::string& path() const { return folder_.path(); }
  std::string File(const std::string& name) const { return path() + "/" + name; }

  absl::StatusOr<std::unique_ptr<ImageFolder>> Open(Split split) const {
    return ImageFolder::Open(path(), split, options_);
  }

  ImageFolderOptions options_;

 private:
  TemporaryFolder folder_ = TemporaryFolder::Create("image_folder_test").value();
};

#define MAKE(what) \
  Make(what);      \
  if (IsSkipped() || HasFatalFailure()) return

// Names of a folder's files that end in .jpg or .png.
std::vector<std::string> ImagesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (absl::EndsWith(name, ".jpg") || absl::EndsWith(name, ".png")) names.push_back(name);
  }
  return names;
}

TEST_F(ImageFolderTest, EveryKindIsDecodedAsPillowDoes) {
  MAKE("kinds");
  int compared = 0;
  for (const std::string& name : ImagesIn(path())) {
    if (name == "grey_of_16_bits.png" || absl::StartsWith(name, "damaged_")) continue;
    SCOPED_TRACE(name);
    const std::string file = ReadBytes(File(name));
    const auto decoded = DecodeImage(file, {});
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(ReadImageSize(file)->width, decoded->image.width);
    EXPECT_EQ(ReadImageSize(file)->height, decoded->image.height);
    EXPECT_TRUE(BytesOf(decoded->image.pixels) == ReadBytes(File(name + ".rgb")));
    EXPECT_EQ(decoded->warning.empty(), name != "wrong_checksum.png") << decoded->warning;
    ++compared;
    for (const int eighths : {4, 2}) {
      const std::string scaled = absl::StrCat(File(name), ".", eighths, ".rgb");
      if (!std::filesystem::exists(scaled)) continue;
      const auto small = DecodeImage(file, {eighths, /*rows=*/0});
      ASSERT_TRUE(small.ok()) << small.status();
      EXPECT_EQ(small->eighths, eighths);
      EXPECT_TRUE(BytesOf(small->image.pixels) == ReadBytes(scaled)) << eighths;
    }
  }
  EXPECT_EQ(compared, 21);
}

TEST_F(ImageFolderTest, FewerRowsAreTheFirstOnes) {
  MAKE("kinds");
  for (const char* name : {"half_colour.jpg", "colour.png", "inks.jpg"}) {
    const std::string file = ReadBytes(File(name));
    const auto all = DecodeImage(file, {});
    const auto some = DecodeImage(file, {8, /*rows=*/17});
    ASSERT_TRUE(all.ok() && some.ok());
    EXPECT_EQ(some->image.height, 17);
    EXPECT_TRUE(
        std::equal(some->image.pixels.begin(), some->image.pixels.end(), all->image.pixels.begin()))
        << name;
  }
}

TEST_F(ImageFolderTest, WhatCannotBeReadIsRefusedWithAReason) {
  MAKE("kinds");
  const auto why = [](absl::string_view file) {
    const absl::Status status = DecodeImage(file, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    return std::string(status.message());
  };
  // Each was said to be so "before byte 41", or where libpng had read to.
  EXPECT_THAT(why(ReadBytes(File("grey_of_16_bits.png"))), EndsWith("is not supported"));
  EXPECT_THAT(why(ReadBytes(File("damaged_palette.png"))), EndsWith("PLTE: CRC error"));
  EXPECT_THAT(why(ReadBytes(File("damaged_zlib.png"))), ContainsRegex(", in row ([0-9]+) of "));
  EXPECT_THAT(why(ReadBytes(File("colour.png")).substr(0, 1234)), EndsWith("early, at byte 1234"));
  EXPECT_THAT(why(""), HasSubstr("neither a JPEG nor a PNG"));
  EXPECT_THAT(why("GIF89a and more"), HasSubstr("neither a JPEG nor a PNG"));
  EXPECT_THAT(why(std::string("\0\5\x16\7 and more", 13)), HasSubstr("AppleDouble"));
  for (const std::string& name : ImagesIn(path())) {
    const std::string file = ReadBytes(File(name));
    SCOPED_TRACE(name);
    // Truncated everywhere: in the header, in the tables, in the pixels. The last bytes of a PNG
    // say nothing but that it ends, and those of a JPEG, but for the two that do, may be padding.
    for (size_t size = 1; size + 40 < file.size(); size += 1 + file.size() / 50) {
      const auto decoded = DecodeImage(absl::string_view(file).substr(0, size), {});
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << size;
    }
  }
  std::string png = ReadBytes(File("colour.png"));
  png.replace(png.size() / 2, 8, "\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_THAT(why(png), HasSubstr("is a PNG that cannot be read"));
  // 60,000 x 60,000 pixels, says its header.
  std::string jpeg = ReadBytes(File("full_colour.jpg"));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xea\x60\xea\x60");
  EXPECT_THAT(why(jpeg), HasSubstr("60000x60000"));
}

// A marker in the midst of the pixels was an error, though Pillow and torchvision read such files.
TEST_F(ImageFolderTest, WhatLibjpegOnlyWarnsOfIsReadAsPillowReadsIt) {
  const int status = std::system(
      absl::StrCat("/usr/bin/python3 worker/data/testdata/make_images.py warned ", File("odd.jpg"))
          .c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkip) GTEST_SKIP() << "needs python3-pil";
  ASSERT_EQ(status, 0);
  const auto decoded = DecodeImage(ReadBytes(File("odd.jpg")), {});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(BytesOf(decoded->image.pixels) == ReadBytes(File("odd.jpg.rgb")));
  EXPECT_NE(decoded->warning, "");
  // Its first half with an end behind it: the rest is grey to both.
  const std::string file = ReadBytes(File("odd.jpg"));
  EXPECT_TRUE(DecodeImage(file.substr(0, file.size() / 2) + "\xff\xd9", {}).ok());
  EXPECT_FALSE(DecodeImage(file.substr(0, file.size() / 2), {}).ok());
}

// Any damage gives an error or an image, and nothing else; of interest under a sanitizer.
TEST_F(ImageFolderTest, DamagedBytesDoNoHarm) {
  MAKE("kinds");
  int failed = 0;
  for (const char* name : {"half_colour.jpg", "progressive.jpg", "inks.jpg", "palette.png"}) {
    const std::string file = ReadBytes(File(name));
    for (size_t i = 0; i < file.size(); i += 7) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      failed += !DecodeImage(damaged, {1 + static_cast<int>(i % 8), /*rows=*/0}).ok();
    }
  }
  EXPECT_GT(failed, 0);
}

TEST_F(ImageFolderTest, ImagesAreListedAsTorchvisionListsThem) {
  MAKE("folder");
  const auto train = Open(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  std::string found;
  std::vector<uint8_t> scratch((*train)->shape().bytes());
  for (int64_t i = 0; i < (*train)->size(); ++i) {
    const auto example = (*train)->Get(i, absl::MakeSpan(scratch));
    ASSERT_TRUE(example.ok()) << example.status();
    absl::StrAppend(&found, example->label, " ", (*train)->path(i), "\n");
  }
  EXPECT_EQ(found, ReadBytes(File("order")));
  EXPECT_EQ((*train)->classes(), 3);
  EXPECT_EQ((*train)->shape().height, 224);
}

TEST_F(ImageFolderTest, EvaluationSeesThePixelsOfPillow) {
  MAKE("folder");
  options_.image_size = 28;
  for (const bool scaled : {false, true}) {
    options_.scaled_decoding = scaled;
    const auto test = Open(Split::kTest);
    ASSERT_TRUE(test.ok()) << test.status();
    ASSERT_EQ((*test)->size(), 5);
    std::vector<uint8_t> scratch((*test)->shape().bytes());
    for (int64_t i = 0; i < (*test)->size(); ++i) {
      const std::string path = (*test)->path(i);
      SCOPED_TRACE(path);
      const auto example = (*test)->Get(i, absl::MakeSpan(scratch));
      ASSERT_TRUE(example.ok()) << example.status();
      // Of Cat, ant and bee, by the training folder.
      EXPECT_EQ(example->label, absl::StrContains(path, "/bee/") ? 2 : 0);
      const std::string expected = ReadBytes(path + ".eval");
      ASSERT_EQ(expected.size(), scratch.size());
      if (!scaled || absl::EndsWith(path, ".png")) {
        EXPECT_TRUE(BytesOf(scratch) == expected);
        continue;
      }
      double difference = 0;
      for (size_t p = 0; p < scratch.size(); ++p) {
        difference += std::abs(scratch[p] - static_cast<int>(static_cast<uint8_t>(expected[p])));
      }
      EXPECT_LT(difference / static_cast<double>(scratch.size()), 4);
    }
  }
}

TEST_F(ImageFolderTest, CropsAreResizedAsPillowDoes) {
  MAKE("crops");
  const RgbImage image = DecodeImage(ReadBytes(File("crops.png")), {})->image;
  std::istringstream lines(ReadBytes(File("crops")));
  int left, top, width, height, size, k = 0;
  for (; lines >> left >> top >> width >> height >> size; ++k) {
    SCOPED_TRACE(k);
    const auto axis = [&](int begin, int length) {
      return ResampleAxis{static_cast<double>(begin),
                          static_cast<double>(length) / size,
                          0,
                          size,
                          begin,
                          begin + length};
    };
    std::vector<uint8_t> planes(3 * size * size);
    Resample(image, axis(left, width), axis(top, height), /*mirror=*/false, planes.data());
    const std::string expected = ReadBytes(File(absl::StrCat(k, ".crop")));
    EXPECT_TRUE(BytesOf(planes) == expected);
    std::vector<uint8_t> mirrored(planes.size());
    Resample(image, axis(left, width), axis(top, height), /*mirror=*/true, mirrored.data());
    for (int row = 0; row < 3 * size; ++row) {
      std::reverse(mirrored.begin() + row * size, mirrored.begin() + (row + 1) * size);
    }
    EXPECT_EQ(mirrored, planes);
  }
  EXPECT_EQ(k, 6);
}

TEST_F(ImageFolderTest, AugmentationDependsOnSeedEpochAndIndexOnly) {
  MAKE("folder");
  options_.image_size = 32;
  const auto train = Open(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  ASSERT_TRUE((*train)->augments());
  const auto sample = [&](const AugmentKey& key) {
    std::vector<uint8_t> pixels((*train)->shape().bytes());
    const auto example = (*train)->GetAugmented(key, absl::MakeSpan(pixels));
    EXPECT_TRUE(example.ok()) << example.status();
    return pixels;
  };
  const std::vector<uint8_t> one = sample({1, 2, 3});
  EXPECT_NE(sample({1, 3, 3}), one);
  EXPECT_NE(sample({2, 2, 3}), one);
  EXPECT_NE(sample({1, 2, 4}), one);
  EXPECT_EQ(sample({1, 2, 3}), one);
}

// Red tells the column of a pixel and green its row, so that a sample tells its box.
TEST_F(ImageFolderTest, TrainingSeesPartsOfTheImageAndHalfOfThemMirrored) {
  MAKE("crops");
  ASSERT_EQ(std::system(absl::StrCat("/usr/bin/python3 -c \"from PIL import Image; Image.frombytes("
                                     "'RGB', (200, 200), bytes(v for y in range(200) for x in "
                                     "range(200) for v in (x, y, 0))).save('",
                                     File("train.png"), "')\"")
                            .c_str()),
            0);
  std::filesystem::create_directories(File("train/one"));
  std::filesystem::rename(File("train.png"), File("train/one/image.png"));
  options_.image_size = 16;
  const auto train = Open(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  std::vector<uint8_t> pixels((*train)->shape().bytes());
  constexpr int kSamples = 400;
  int mirrored = 0, small = 0, whole = 0;
  for (int epoch = 0; epoch < kSamples; ++epoch) {
    ASSERT_TRUE((*train)->GetAugmented({5, epoch, 0}, absl::MakeSpan(pixels)).ok());
    const uint8_t* const red = pixels.data();
    const uint8_t* const green = red + 256;
    mirrored += red[0] > red[15];
    // From the centre of the first pixel to that of the last.
    const double width = std::abs(red[15] - red[0]) * 16.0 / 15;
    const double height = (green[15 * 16] - green[0]) * 16.0 / 15;
    ASSERT_GT(height, 0);
    const double area = width * height / (200 * 200);
    EXPECT_GT(area, 0.07);
    EXPECT_LT(area, 1.01);
    EXPECT_NEAR(width / height, 1, 0.4);
    small += area < 0.54;
    whole += area > 0.9;
  }
  EXPECT_NEAR(mirrored, kSamples / 2, 6 * 10);
  // The larger half of all areas does not always fit.
  EXPECT_GT(small, kSamples / 2);
  EXPECT_GT(whole, 0);
}

TEST_F(ImageFolderTest, FilesThatAreDamagedOrGoneAreNamed) {
  MAKE("folder");
  options_.image_size = 32;
  WriteBytes(File("train/bee/2.jpg"), ReadBytes(File("train/bee/2.jpg")).substr(0, 700));
  const auto train = Open(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  std::filesystem::remove(File("train/bee/10.JPEG"));
  std::vector<uint8_t> pixels((*train)->shape().bytes());
  for (const char* name : {"train/bee/2.jpg", "train/bee/10.JPEG"}) {
    int64_t index = 0;
    while ((*train)->path(index) != File(name)) ++index;
    for (const absl::Status& status :
         {(*train)->Get(index, absl::MakeSpan(pixels)).status(),
          (*train)->GetAugmented({1, 0, index}, absl::MakeSpan(pixels)).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr(File(name)));
    }
  }
}

// Two links that led to each other's folder were followed without end.
TEST_F(ImageFolderTest, LoopsOfLinksEndAndFoldersAreListedOnceInAClass) {
  WriteBytes(File("train/a/1.png"), "");
  WriteBytes(File("train/b/2.png"), "");
  WriteBytes(File("elsewhere/3.png"), "");
  std::filesystem::create_directory_symlink("../b", File("train/a/to_b"));
  std::filesystem::create_directory_symlink("../a", File("train/b/to_a"));
  std::filesystem::create_directory_symlink("..", File("train/b/up"));
  std::filesystem::create_directory_symlink(File("elsewhere"), File("train/c"));
  const auto train = Open(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  std::vector<std::string> paths;
  for (int64_t i = 0; i < (*train)->size(); ++i) paths.push_back((*train)->path(i));
  std::vector<std::string> expected = {File("train/a/1.png"), File("train/a/to_b/2.png"),
                                       File("train/b/2.png"), File("train/b/to_a/1.png"),
                                       File("train/c/3.png")};
  EXPECT_EQ(paths, expected);
}

TEST_F(ImageFolderTest, IdentityIsOfNamesAndBytesAndNotOfThePath) {
  const auto identity = [this](const std::string& folder) {
    return (*ImageFolder::Open(File(folder), Split::kTrain, options_))->identity();
  };
  for (const char* folder : {"one", "two", "names", "bytes"}) {
    for (int i = 0; i < 3; ++i) {
      WriteBytes(File(absl::StrCat(folder, "/train/a/", i, ".png")), "image");
      WriteBytes(File(absl::StrCat(folder, "/train/b/", i, ".png")), "image");
    }
  }
  std::filesystem::rename(File("names/train/b/0.png"), File("names/train/b/00.png"));
  WriteBytes(File("bytes/train/b/0.png"), "imago");
  const DataIdentity one = identity("one");
  EXPECT_THAT(one.what, HasSubstr("imagefolder of 6 images in 2 classes (a, b), names "));
  EXPECT_EQ(identity("two").ToString(), one.ToString());
  EXPECT_EQ(identity("two/../one/").ToString(), one.ToString());
  EXPECT_NE(identity("names").what, one.what);
  EXPECT_EQ(identity("bytes").what, one.what);
  EXPECT_NE(identity("bytes").ToString(), one.ToString());
  EXPECT_EQ(DifferentParts(identity("bytes"), one), 1u);
}

TEST_F(ImageFolderTest, FoldersThatAreNoImageFolderAreNamed) {
  const auto why = [this](Split split) {
    const absl::Status status = Open(split).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(why(Split::kTrain), AllOf(HasSubstr(File("train")), HasSubstr("does not exist")));
  std::filesystem::create_directories(File("train"));
  EXPECT_THAT(why(Split::kTrain), AllOf(HasSubstr(File("train")), HasSubstr("for each class")));
  WriteBytes(File("train/cat/1.png"), "");
  WriteBytes(File("train/dog/1.txt"), "");
  EXPECT_THAT(why(Split::kTrain), AllOf(HasSubstr(File("train/dog")), HasSubstr("found none")));
  WriteBytes(File("train/dog/1.png"), "");
  EXPECT_TRUE(Open(Split::kTrain).ok());
  EXPECT_THAT(why(Split::kTest), AllOf(HasSubstr(path()), HasSubstr("val or test")));
  WriteBytes(File("test/dog/1.png"), "");
  EXPECT_EQ((*Open(Split::kTest))->path(0), File("test/dog/1.png"));
  WriteBytes(File("val/dog/2.png"), "");
  EXPECT_EQ((*Open(Split::kTest))->path(0), File("val/dog/2.png"));
  WriteBytes(File("val/emu/1.png"), "");
  EXPECT_THAT(why(Split::kTest), AllOf(HasSubstr(File("val")), HasSubstr("emu")));
}

}  // namespace
}  // namespace gradsync
