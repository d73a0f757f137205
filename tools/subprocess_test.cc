#include "tools/subprocess.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// A machine's files, below a folder of the test's.
class OomKillsTest : public ::testing::Test {
 protected:
  OomKillsTest() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = ::testing::TempDir() + "/" + test->name();
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  OomKills Read() { return ReadOomKills(root_); }

 private:
  std::string root_;
};

TEST_F(OomKillsTest, VersionTwoCountsInMemoryEvents) {
  Write("/proc/self/cgroup", "0::/job/a\n");
  Write("/sys/fs/cgroup/job/a/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 9\n");
  Write("/proc/vmstat", "nr_free_pages 1\noom_kill 7\n");
  EXPECT_EQ(Read().group, 3);
  EXPECT_EQ(Read().host, 7);
}

TEST_F(OomKillsTest, VersionOneCountsInOomControlWhereverTheGroupIsMounted) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n5:cpu:/x\n4:memory,hugetlb:/docker/12\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n");
  EXPECT_EQ(Read().group, 2);
  EXPECT_EQ(Read().host, absl::nullopt);
}

TEST_F(OomKillsTest, WhatIsNotThereIsUnset) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.events", "oom_kill many\n");
  EXPECT_EQ(Read().group, absl::nullopt);
}

TEST(ExplainForeignKillTest, ItSaysWhatTheKernelCounted) {
  EXPECT_THAT(ExplainForeignKill({1, 5}, {2, 6}, false),
              HasSubstr("memory limit of the control group"));
  EXPECT_THAT(ExplainForeignKill({1, 5}, {1, 6}, false), HasSubstr("memory ran out on this host"));
  EXPECT_THAT(ExplainForeignKill({1, 5}, {1, 5}, false), HasSubstr("by another process"));
  // Was said to be another process's doing under `ulimit -t 1`.
  EXPECT_THAT(ExplainForeignKill({1, 5}, {1, 5}, true),
              HasSubstr("or for a limit such as ulimit -t"));
  EXPECT_THAT(ExplainForeignKill({}, {}, true), HasSubstr("or for a limit such as ulimit -t"));
  EXPECT_THAT(ExplainForeignKill({}, {}, false), HasSubstr("by the kernel if memory ran out"));
}

}  // namespace
}  // namespace gradsync
