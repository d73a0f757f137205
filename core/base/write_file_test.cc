#include "core/base/write_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "core/base/temporary_folder.h"
#include "gtest/gtest.h"

// The order in which these are called, in place of the C library's own.
std::vector<std::string> calls;

extern "C" int fsync(int file) {
  struct stat what;
  calls.push_back(fstat(file, &what) == 0 && S_ISDIR(what.st_mode) ? "fsync folder" : "fsync file");
  return static_cast<int>(syscall(SYS_fsync, file));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  calls.push_back("rename");
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

namespace gradsync {
namespace {

class WriteFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
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

// Otherwise a machine that loses its power may come back with the new name and an empty file, or
// with the old one.
TEST_F(WriteFileTest, TheContentIsOnTheDiskBeforeTheNameAndTheNameBeforeTheReturn) {
  calls.clear();
  ASSERT_EQ(WriteFileAtomically(Path("file"), "new"), absl::OkStatus());
  EXPECT_EQ(calls, (std::vector<std::string>{"fsync file", "rename", "fsync folder"}));
  EXPECT_EQ(Read(Path("file")), "new");
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

// --metrics_json=/dev/stdout, as root, with stdout going to a file, made a file of the link.
TEST_F(WriteFileTest, ALinkStaysAndWhatAProcessHasOpenIsAddedTo) {
  ASSERT_EQ(WriteFileAtomically(Path("target"), "old"), absl::OkStatus());
  ASSERT_EQ(symlink("target", Path("one").c_str()), 0);
  ASSERT_EQ(symlink(Path("one").c_str(), Path("two").c_str()), 0);
  ASSERT_EQ(WriteFileAtomically(Path("two"), "new"), absl::OkStatus());
  EXPECT_EQ(Read(Path("target")), "new");

  const int file = open(Path("open").c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(write(file, "before ", 7), 7);
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  ASSERT_EQ(symlink(name.c_str(), Path("stdout").c_str()), 0);
  ASSERT_EQ(WriteFileAtomically(Path("stdout"), "result"), absl::OkStatus());
  EXPECT_EQ(Read(Path("open")), "before result");
  close(file);

  struct stat found;
  for (const char* link : {"one", "two", "stdout"}) {
    EXPECT_TRUE(lstat(Path(link).c_str(), &found) == 0 && S_ISLNK(found.st_mode)) << link;
  }
  // Round in a circle, and to nowhere.
  ASSERT_EQ(symlink("circle", Path("circle").c_str()), 0);
  EXPECT_FALSE(WriteFileAtomically(Path("circle/file"), "x").ok());
  ASSERT_EQ(symlink("later", Path("early").c_str()), 0);
  ASSERT_EQ(WriteFileAtomically(Path("early"), "x"), absl::OkStatus());
  EXPECT_EQ(Read(Path("later")), "x");
}

TEST_F(WriteFileTest, AFullDiskAndAFolderThatIsNotThereAreNamed) {
  const absl::Status full = WriteFileAtomically("/dev/full", "x");
  EXPECT_FALSE(full.ok());
  EXPECT_TRUE(absl::StrContains(full.message(), "/dev/full")) << full;
  const absl::Status nowhere = WriteFileAtomically(Path("no/file"), "x");
  EXPECT_TRUE(absl::IsNotFound(nowhere)) << nowhere;
}

// What could not be written was found when it was to be written, after the last step of a job.
TEST_F(WriteFileTest, WhatCannotBeWrittenIsFoundWithoutWritingIt) {
  EXPECT_EQ(WhyNotWritable(Path("new")), "");
  EXPECT_NE(access(Path("new").c_str(), F_OK), 0);
  ASSERT_EQ(WriteFileAtomically(Path("old"), "kept"), absl::OkStatus());
  EXPECT_EQ(WhyNotWritable(Path("old")), "");
  EXPECT_EQ(Read(Path("old")), "kept");
  EXPECT_EQ(WhyNotWritable("/dev/null"), "");

  EXPECT_EQ(WhyNotWritable(Path("no/file")), "No such file or directory");
  EXPECT_EQ(WhyNotWritable(Path("old/file")), "Not a directory");
  EXPECT_EQ(WhyNotWritable(folder_.path()), "Is a directory");
  EXPECT_NE(WhyNotWritable("/proc/file"), "");
  ASSERT_EQ(symlink("nowhere/file", Path("astray").c_str()), 0);
  EXPECT_EQ(WhyNotWritable(Path("astray")), "No such file or directory");
  EXPECT_EQ(Files(), (std::vector<std::string>{"astray", "old"}));
}

// It was opened after the last step, which waited for a reader, and no signal ended that.
TEST_F(WriteFileTest, APipeThatNobodyReadsAndASocketAreRefusedWithoutAWait) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(WhyNotWritable(Path("pipe")), "a pipe that nobody reads");
  const absl::Status unread = WriteFileAtomically(Path("pipe"), "x");
  EXPECT_TRUE(absl::EndsWith(unread.message(), "/pipe: a pipe that nobody reads")) << unread;

  const int bound = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, Path("socket").c_str(), sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(bound, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(bound, 1), 0);
  EXPECT_EQ(WhyNotWritable(Path("socket")), "a socket");
  EXPECT_FALSE(WriteFileAtomically(Path("socket"), "x").ok());
  close(bound);
}

// It was found after the last step.
TEST_F(WriteFileTest, ADeviceThatTakesNothingIsFoundWithoutContent) {
  EXPECT_EQ(WhyNotWritable("/dev/full"), "No space left on device");
  ASSERT_EQ(symlink("/dev/full", Path("full").c_str()), 0);
  EXPECT_EQ(WhyNotWritable(Path("full")), "No space left on device");
  EXPECT_EQ(WhyNotWritable("/dev/zero"), "");
}

TEST_F(WriteFileTest, TheReaderOfAPipeThatIsTriedFirstGetsAllOfTheContent) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::string heard;
  // Waits for a writer, and reads until there is none.
  std::thread reader([&] { heard = Read(Path("pipe")); });
  while (!WhyNotWritable(Path("pipe")).empty()) std::this_thread::yield();
  EXPECT_EQ(WhyNotWritable(Path("pipe")), "");      // and a second time
  const std::string content(size_t{1} << 20, 'x');  // more than a pipe holds
  EXPECT_EQ(WriteFileAtomically(Path("pipe"), content), absl::OkStatus());
  reader.join();
  EXPECT_EQ(heard, content);
  EXPECT_EQ(WhyNotWritable(Path("pipe")), "a pipe that nobody reads");
}

TEST_F(WriteFileTest, NamesOfOneFileAreKnownAsSuch) {
  const std::string folder = std::filesystem::canonical(folder_.path()).string();
  EXPECT_EQ(FileReplacedAt(Path("new")), folder + "/new");
  ASSERT_EQ(symlink(".", Path("here").c_str()), 0);
  ASSERT_EQ(symlink("here/new", Path("link").c_str()), 0);
  EXPECT_EQ(FileReplacedAt(Path("here/new")), folder + "/new");
  EXPECT_EQ(FileReplacedAt(Path("link")), folder + "/new");
  EXPECT_EQ(FileReplacedAt("/dev/null"), "");
  EXPECT_EQ(FileReplacedAt("/proc/self/fd/1"), "");
}

}  // namespace
}  // namespace gradsync
