#include "core/program/regular_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "core/base/temporary_folder.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

class RegularFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }

  const TemporaryFolder folder_ = *TemporaryFolder::Create("regular-file-");
};

// The process hung before it had said anything.
TEST_F(RegularFileTest, APipeThatNobodyWritesToIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(ReadRegularFile(Path("pipe")).status(),
            absl::InvalidArgumentError("a pipe, expected a regular file"));
}

TEST_F(RegularFileTest, WhatElseIsNoFileIsCalledByItsName) {
  EXPECT_EQ(ReadRegularFile("/dev/null").status(),
            absl::InvalidArgumentError("a device, expected a regular file"));
  EXPECT_EQ(ReadRegularFile(folder_.path()).status(),
            absl::FailedPreconditionError("a folder, expected a regular file"));
  EXPECT_EQ(ReadRegularFile(Path("none")).status(),
            absl::NotFoundError("No such file or directory"));
}

TEST_F(RegularFileTest, AFileIsReadWholeWhateverItsSize) {
  for (const size_t bytes : {0, 1, 4095, 4096, 4097, 100000}) {
    const std::string text(bytes, 'x');
    EXPECT_EQ(ReadRegularFile(Write("file", text)).value(), text);
    EXPECT_EQ(RegularFile::Open(Path("file"))->size(), static_cast<int64_t>(bytes));
  }
  EXPECT_EQ(ReadRegularFile("/proc/sys/kernel/ostype").value(), "Linux\n");
}

TEST_F(RegularFileTest, NoMoreIsReadThanIsWanted) {
  const std::string path = Write("file", std::string(10000, 'x') + "tail");
  EXPECT_EQ(ReadRegularFile(path, 0).value(), "");
  EXPECT_EQ(ReadRegularFile(path, 5000).value(), std::string(5000, 'x'));
  EXPECT_EQ(ReadRegularFile(path, 10004).value().substr(10000), "tail");
  RegularFile file = *RegularFile::Open(path);
  std::string text(20000, '\0');
  EXPECT_EQ(file.Read(&text[0], 10000).value(), 10000);
  EXPECT_EQ(file.Read(&text[0], 10000).value(), 4);
  EXPECT_EQ(text.substr(0, 4), "tail");
}

}  // namespace
}  // namespace gradsync
