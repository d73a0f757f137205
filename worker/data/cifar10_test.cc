#include "worker/data/cifar10.h"

#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kRecordBytes = 3073;
constexpr int64_t kFileBytes = 10000 * kRecordBytes;

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/cifar10_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

// Record r of file f has label (r + f) % 10 and pixel p = (r + f + p) % 251.
std::vector<char> FileBytes(int f) {
  std::vector<char> bytes;
  bytes.reserve(kFileBytes);
  for (int64_t r = 0; r < 10000; ++r) {
    bytes.push_back(static_cast<char>((r + f) % 10));
    for (int64_t p = 0; p < 3072; ++p) bytes.push_back(static_cast<char>((r + f + p) % 251));
  }
  return bytes;
}

void Write(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
}

void WriteTest(const std::string& directory) { Write(directory + "/test_batch.bin", FileBytes(6)); }

TEST(Cifar10Test, TrainIsTheFiveBatchesInOrder) {
  const std::string directory = NewDirectory();
  for (int f = 1; f <= 5; ++f) {
    Write(absl::StrCat(directory, "/data_batch_", f, ".bin"), FileBytes(f));
  }
  auto dataset = Cifar10::Open(directory, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ((*dataset)->size(), 50000);
  EXPECT_EQ((*dataset)->classes(), 10);
  for (int64_t index : {0, 9999, 10000, 34567, 49999}) {
    const int64_t f = index / 10000 + 1, r = index % 10000;
    const ImageExample example = (*dataset)->Get(index, {}).value();
    EXPECT_EQ(example.label, (r + f) % 10) << index;
    EXPECT_EQ(example.pixels[0], (r + f) % 251) << index;
    EXPECT_EQ(example.pixels[3071], (r + f + 3071) % 251) << index;
  }
}

TEST(Cifar10Test, FindsTheFolderThatTheArchiveUnpacks) {
  const std::string directory = NewDirectory();
  const std::string nested = directory + "/cifar-10-batches-bin";
  ASSERT_EQ(mkdir(nested.c_str(), 0700), 0);
  WriteTest(nested);
  auto dataset = Cifar10::Open(directory, Split::kTest);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 10000);
}

TEST(Cifar10Test, MissingDirectoryIsNamed) {
  const auto dataset = Cifar10::Open("/no/such/place", Split::kTest);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr("/no/such/place"));
}

TEST(Cifar10Test, MissingFileIsNamed) {
  const std::string directory = NewDirectory();
  Write(directory + "/data_batch_1.bin", FileBytes(1));
  const auto dataset = Cifar10::Open(directory, Split::kTrain);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr(directory + "/data_batch_2.bin"));
}

TEST(Cifar10Test, TruncatedAndOverlongFilesAreDataLossWithBothSizes) {
  const std::string directory = NewDirectory();
  for (int64_t size : {int64_t{0}, kFileBytes - 1, kFileBytes + 1}) {
    std::vector<char> bytes = FileBytes(6);
    bytes.resize(size);
    Write(directory + "/test_batch.bin", bytes);
    const auto dataset = Cifar10::Open(directory, Split::kTest);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(dataset.status().message(), HasSubstr(directory + "/test_batch.bin"));
    EXPECT_THAT(dataset.status().message(), HasSubstr("expected 30730000 bytes"));
    EXPECT_THAT(dataset.status().message(), HasSubstr(absl::StrCat("found ", size, ";")));
    EXPECT_THAT(dataset.status().message(), Not(HasSubstr("\n")));
  }
}

TEST(Cifar10Test, LabelAboveNineIsDataLossWithItsRecord) {
  const std::string directory = NewDirectory();
  std::vector<char> bytes = FileBytes(6);
  bytes[1234 * kRecordBytes] = 10;
  Write(directory + "/test_batch.bin", bytes);
  const auto dataset = Cifar10::Open(directory, Split::kTest);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(dataset.status().message(), HasSubstr("record 1234 has label 10 at byte 3792082"));
}

TEST(Cifar10Test, DirectoryInPlaceOfAFileIsDataLoss) {
  const std::string directory = NewDirectory();
  ASSERT_EQ(mkdir((directory + "/test_batch.bin").c_str(), 0700), 0);
  const auto dataset = Cifar10::Open(directory, Split::kTest);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
}

TEST(Cifar10Test, APipeInPlaceOfAFileIsDataLossAndWaitsForNobody) {
  const std::string directory = NewDirectory();
  ASSERT_EQ(mkfifo((directory + "/test_batch.bin").c_str(), 0600), 0);
  const auto dataset = Cifar10::Open(directory, Split::kTest);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(dataset.status().message(), HasSubstr("a pipe, expected a regular file"));
}

}  // namespace
}  // namespace gradsync
