#include "core/base/process_resources.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Files of /proc and /sys as a kernel shows them to a process.
class Machine {
 public:
  Machine() { Write("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_ = *TemporaryFolder::Create("process_limits_test");
};

constexpr char kVersion2[] = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(AvailableMemoryTest, IsTheHostsWhereNoGroupHasALimit) {
  Machine machine;
  EXPECT_EQ(AvailableMemory(machine.root()).bytes, 8000u * 1024);
  machine.Write("/proc/self/cgroup", "0::/job\n");
  machine.Write("/proc/self/mountinfo", kVersion2);
  machine.Write("/sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(AvailableMemory(machine.root()).bytes, 8000u * 1024);
  EXPECT_EQ(AvailableMemory(machine.root()).source, "the host");
}

// What a container or a batch system allows was not seen, and the job killed instead of refused.
TEST(AvailableMemoryTest, IsWhatTheTightestGroupLeavesAndCachedFilesAreFree) {
  Machine machine;
  machine.Write("/proc/self/cgroup", "0::/batch/job/step\n");
  machine.Write("/proc/self/mountinfo", kVersion2);
  machine.Write("/sys/fs/cgroup/batch/job/step/memory.max", "max\n");
  machine.Write("/sys/fs/cgroup/batch/job/memory.max", "1000000\n");
  machine.Write("/sys/fs/cgroup/batch/job/memory.current", "700000\n");
  machine.Write("/sys/fs/cgroup/batch/job/memory.stat", "anon 600000\ninactive_file 100000\n");
  machine.Write("/sys/fs/cgroup/batch/memory.max", "5000000\n");
  machine.Write("/sys/fs/cgroup/batch/memory.current", "4000000\n");
  const MemoryLimit limit = AvailableMemory(machine.root());
  EXPECT_EQ(limit.bytes, 400000u);
  EXPECT_EQ(limit.source, "the memory limit of control group /batch/job");
}

TEST(AvailableMemoryTest, KnowsVersion1InAContainerThatSeesThePathOnTheHost) {
  Machine machine;
  machine.Write("/proc/self/cgroup", "5:pids:/docker/c0ffee\n4:memory:/docker/c0ffee/a\n0::/\n");
  machine.Write("/proc/self/mountinfo",
                "31 30 0:27 /docker/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  machine.Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  machine.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  machine.Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3500000\n");
  machine.Write("/sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 1000000\n");
  EXPECT_EQ(AvailableMemory(machine.root()).bytes, 500000u);
}

TEST(HostCoresTest, AreNoMoreThanTheQuotaRoundedUp) {
  Machine machine;
  const int all = HostCores(machine.root());
  EXPECT_GE(all, 1);
  machine.Write("/proc/self/cgroup", "0::/a/b\n");
  machine.Write("/proc/self/mountinfo", kVersion2);
  machine.Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(HostCores(machine.root()), all);
  machine.Write("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(HostCores(machine.root()), 1);

  Machine version_1;
  version_1.Write("/proc/self/cgroup", "2:cpu,cpuacct:/x\n");
  version_1.Write("/proc/self/mountinfo",
                  "31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n");
  version_1.Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  version_1.Write("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(HostCores(version_1.root()), all);
  version_1.Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(HostCores(version_1.root()), 1);
}

TEST(ThreadLimitsTest, NameEachBound) {
  Machine machine;
  machine.Write("/proc/self/cgroup", "0::/pod\n");
  machine.Write("/proc/self/mountinfo", kVersion2);
  machine.Write("/sys/fs/cgroup/pod/pids.max", "77\n");
  machine.Write("/proc/sys/kernel/threads-max", "4321\n");
  const std::string limits = ThreadLimits(machine.root());
  EXPECT_THAT(limits, HasSubstr("77 of control group /pod (pids.max)"));
  EXPECT_THAT(limits, HasSubstr("4321 of the host (threads-max)"));
}

// Was blamed on `ulimit -u`.
TEST(ThreadLimitsTest, NameTheAddressesThatStacksNeed) {
  Machine machine;
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
  if (old.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "it is limited already";
  const rlim_t most = rlim_t{1} << 62;  // more than there are
  const rlimit limited = {most, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  const std::string limits = ThreadLimits(machine.root());
  ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
  EXPECT_THAT(limits, HasSubstr("4611686018427387904 bytes of addresses"));
  EXPECT_THAT(limits, HasSubstr("(ulimit -v)"));
}

TEST(TakeMemoryTest, FillsWithZerosAndRefusesWhatIsNotThere) {
  std::vector<char> memory((size_t{33} << 20) + 5, 'x');
  ASSERT_EQ(TakeMemory("buckets", memory.data(), memory.size()), absl::OkStatus());
  EXPECT_EQ(memory, std::vector<char>(memory.size()));
  const absl::Status refused = CheckMemory("buckets", uint64_t{1} << 62);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("buckets: expected 4611686018427387904"));
}

}  // namespace
}  // namespace gradsync
