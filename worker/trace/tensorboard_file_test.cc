#include "worker/trace/tensorboard_file.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/temporary_folder.h"
#include "gtest/gtest.h"
#include "proto/tensorboard_event.pb.h"

namespace gradsync {
namespace {

// Values of RFC 3720, appendix B.4, and the check value of the polynomial.
TEST(Crc32cTest, IsThatOfTheRfc) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

uint32_t Masked(const std::string& bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename Int>
Int Take(std::string* bytes) {
  Int value = 0;
  std::memcpy(&value, bytes->data(), sizeof(value));
  bytes->erase(0, sizeof(value));
  return value;
}

std::vector<tensorboard::Event> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<tensorboard::Event> events;
  while (bytes.size() >= 16) {
    const std::string length = bytes.substr(0, 8);
    const auto size = static_cast<size_t>(Take<uint64_t>(&bytes));
    EXPECT_EQ(Take<uint32_t>(&bytes), Masked(length));
    const std::string event = bytes.substr(0, size);
    bytes.erase(0, size);
    EXPECT_EQ(Take<uint32_t>(&bytes), Masked(event));
    EXPECT_TRUE(events.emplace_back().ParseFromString(event));
  }
  EXPECT_EQ(bytes, "");
  return events;
}

TEST(TensorboardFileTest, EachCallIsARecordWithItsChecksums) {
  const auto folder = TemporaryFolder::Create("tensorboard_file_test");
  ASSERT_TRUE(folder.ok()) << folder.status();
  // Made where it is not.
  const auto file = TensorboardFile::Create(folder->path() + "/a/b");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Add(1, {{"loss", 2.5}, {"lr", 0}}).ok());
  ASSERT_TRUE((*file)->Add(2, {}).ok());
  ASSERT_TRUE((*file)->Begin(2).ok());
  // While the file is open: a job is watched.
  const std::vector<tensorboard::Event> events = Read((*file)->path());
  ASSERT_EQ(events.size(), 4);
  EXPECT_EQ(events[3].step(), 2);
  EXPECT_EQ(events[3].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 1);
  ASSERT_EQ(events[1].summary().value_size(), 2);
  EXPECT_EQ(events[1].summary().value(0).tag(), "loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 2.5f);
  EXPECT_TRUE(events[1].summary().value(1).value_case() ==
              tensorboard::Summary::Value::kSimpleValue);
  EXPECT_EQ(events[2].step(), 2);
}

TEST(TensorboardFileTest, AFolderThatCannotBeMadeIsNamed) {
  const auto file = TensorboardFile::Create("/proc/no/folder");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("/proc/no/folder"), std::string::npos);
}

}  // namespace
}  // namespace gradsync
