#include "benchmarks/records/machine_info.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST(MachineInfoTest, EveryFieldIsFilled) {
  const proto::Machine machine = DescribeMachine();
  EXPECT_NE(machine.cpu(), "");
  EXPECT_GE(machine.cores(), 1);
  EXPECT_GT(machine.memory_bytes(), 1 << 28);
  EXPECT_THAT(machine.os(), AllOf(HasSubstr(" "), Not(HasSubstr("\""))));
  EXPECT_THAT(machine.kernel(), StartsWith("Linux "));
  EXPECT_THAT(machine.compiler(), MatchesRegex("(GCC|clang) [0-9]+\\..*"));
  EXPECT_THAT(machine.build_mode(), AnyOf("opt", "dbg", "fastbuild"));
  EXPECT_THAT(machine.versions(),
              UnorderedElementsAre(Key("abseil"), Key("grpc"), Key("libtorch"), Key("protobuf")));
  for (const auto& [library, version] : machine.versions()) {
    EXPECT_THAT(version, MatchesRegex("[0-9][0-9a-z.+-]*")) << library;
  }
  absl::Time date;
  std::string error;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, machine.date(), &date, &error)) << error;
  EXPECT_LT(absl::AbsDuration(absl::Now() - date), absl::Hours(1));
}

// What a shell would make of a folder's name is not asked.
TEST(MachineInfoTest, TheCommitIsThatOfTheCheckoutAndUnknownElsewhere) {
  EXPECT_EQ(DescribeMachine().commit(), "unknown");
  const std::string folder = testing::TempDir() + "/it's a checkout";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  EXPECT_EQ(DescribeMachine(folder + "/none").commit(), "unknown");
  const auto git = [&folder](const std::string& arguments) {
    const std::string command =
        "cd \"" + folder + "\" && git -c user.name=a -c user.email=a@b.c " + arguments;
    return std::system(command.c_str());
  };
  ASSERT_EQ(git("init -q . && echo 1 > file && git add file"), 0);
  ASSERT_EQ(git("commit -q -m one"), 0);
  proto::Machine machine = DescribeMachine(folder);
  EXPECT_THAT(machine.commit(), MatchesRegex("[0-9a-f]{40}"));
  EXPECT_FALSE(machine.dirty());
  std::ofstream(folder + "/file") << "2";
  EXPECT_TRUE(DescribeMachine(folder).dirty());
}

TEST(MachineInfoTest, FormatIsOneLineWithTheVersions) {
  proto::Machine machine;
  machine.set_cpu("Z80");
  machine.set_cores(1);
  machine.set_memory_bytes(3.0 * (1 << 29));
  machine.set_os("CP/M 2.2");
  machine.set_kernel("BDOS");
  machine.set_compiler("GCC 12");
  machine.set_build_mode("opt");
  (*machine.mutable_versions())["grpc"] = "1.51";
  (*machine.mutable_versions())["abseil"] = "2022";
  EXPECT_EQ(FormatMachine(machine),
            "Z80, 1 core, 1.5 GiB; CP/M 2.2, BDOS; GCC 12, -c opt; grpc 1.51, abseil 2022");
}

TEST(MachineInfoTest, OnlyBuildsThatAreNotOptimisedGetAWarning) {
  proto::Machine machine;
  machine.set_build_mode("opt");
  EXPECT_EQ(BuildModeWarning(machine), "");
  machine.set_build_mode("dbg");
  EXPECT_THAT(BuildModeWarning(machine), AllOf(StartsWith("WARNING: "), HasSubstr("-c dbg")));
}

TEST(MachineInfoTest, BusyCoresAreBetweenNoneAndAll) {
  const double busy = BusyCores(absl::Milliseconds(100));
  EXPECT_GE(busy, 0);
  EXPECT_LE(busy, sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_EQ(BusyWarning(0.1), "");
  EXPECT_THAT(BusyWarning(1.5), StartsWith("WARNING: other programs keep 1.5 cores busy"));
}

}  // namespace
}  // namespace gradsync
