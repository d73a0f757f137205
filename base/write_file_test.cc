#include "base/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/temporary_folder.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

class WriteFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const TemporaryFolder folder_ = *TemporaryFolder::Create("write_file_test");
};

TEST_F(WriteFileTest, ReplacesAFileByAnyContent) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000003}, size_t{0}}) {
    const std::string content(bytes, '\0');
    ASSERT_EQ(WriteFileAtomically(Path("file"), content), absl::OkStatus());
    EXPECT_EQ(Read(Path("file")), content);
  }
}

// --metrics_json=/dev/null, as root, replaced the device of the whole system by a file.
TEST_F(WriteFileTest, WritesToWhatIsNoOrdinaryFileAndLeavesItInPlace) {
  const std::string pipe = Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(WriteFileAtomically(pipe, "ten bytes\n"), absl::OkStatus());
  char heard[100];
  EXPECT_EQ(read(reader, heard, sizeof(heard)), 10);
  close(reader);
  struct stat found;
  ASSERT_EQ(stat(pipe.c_str(), &found), 0);
  EXPECT_TRUE(S_ISFIFO(found.st_mode));

  EXPECT_EQ(WriteFileAtomically("/dev/null", "x"), absl::OkStatus());
  ASSERT_EQ(stat("/dev/null", &found), 0);
  EXPECT_TRUE(S_ISCHR(found.st_mode));
}

TEST_F(WriteFileTest, AFullDiskAndAFolderThatIsNotThereAreNamed) {
  const absl::Status full = WriteFileAtomically("/dev/full", "x");
  EXPECT_FALSE(full.ok());
  EXPECT_TRUE(absl::StrContains(full.message(), "/dev/full")) << full;
  const absl::Status nowhere = WriteFileAtomically(Path("no/file"), "x");
  EXPECT_TRUE(absl::IsNotFound(nowhere)) << nowhere;
}

}  // namespace
}  // namespace gradsync
