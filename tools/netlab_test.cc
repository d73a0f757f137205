// The program, with real hosts: skipped where the system allows none.

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/network_lab.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kNetlab[] = "tools/netlab";

class NetlabTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status possible = NetworkLab::Create(NetworkLabOptions()).status();
    if (absl::IsPermissionDenied(possible) || absl::IsNotFound(possible)) {
      GTEST_SKIP() << possible;
    }
  }
};

// Processes of the system that have `marker` among their arguments, or are in the network namespace
// of that name, or hold it open.
std::vector<std::string> Traces(const std::string& marker, const std::string& network) {
  std::vector<std::string> traces;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string process = entry.path();
    std::ifstream file(process + "/cmdline", std::ios::binary);
    const std::string command(std::istreambuf_iterator<char>(file), {});
    if (absl::StrContains(command, marker)) traces.push_back(process);
    if (std::filesystem::read_symlink(process + "/ns/net", error) == network) {
      traces.push_back(process + "/ns/net");
    }
    for (std::filesystem::directory_iterator fd(process + "/fd", error), end; !error && fd != end;
         fd.increment(error)) {
      if (std::filesystem::read_symlink(fd->path(), error) == network) traces.push_back(fd->path());
    }
    error.clear();
  }
  return traces;
}

TEST_F(NetlabTest, ACommandRunsOnTheHostThatWasAskedForAndItsExitCodeIsReturned) {
  TestProgram program({kNetlab, "--hosts=3", "--bandwidth=400mbit", "--burst=128KiB", "--host=2",
                       "--", "/bin/sh", "-c",
                       "PATH=$PATH:/usr/sbin:/sbin; ip -4 -brief address show eth0; tc qdisc show "
                       "dev eth0; exit 7"});
  EXPECT_EQ(program.Finish().code, 7);
  ASSERT_THAT(program.out(), SizeIs(2)) << absl::StrJoin(program.err(), "\n");
  EXPECT_THAT(program.out()[0], HasSubstr("10.77.0.3/16"));
  EXPECT_THAT(program.out()[1], HasSubstr("tbf"));
  EXPECT_THAT(program.out()[1], HasSubstr("rate 400Mbit burst"));
}

TEST_F(NetlabTest, OtherHostsAreEnteredFromInside) {
  const std::string self = std::filesystem::absolute(kNetlab);
  TestProgram program({kNetlab, "--hosts=2", "--", self, "--enter=1", "--", "/bin/sh", "-c",
                       "PATH=$PATH:/usr/sbin:/sbin; ip -4 -brief address show eth0"});
  EXPECT_EQ(program.Finish().code, 0);
  ASSERT_THAT(program.out(), SizeIs(1)) << absl::StrJoin(program.err(), "\n");
  EXPECT_THAT(program.out()[0], HasSubstr("10.77.0.2/16"));
}

TEST_F(NetlabTest, AHundredHostsAreEachThemselves) {
  const std::string self = std::filesystem::absolute(kNetlab);
  for (const char* host : {"0", "99"}) {
    TestProgram program({kNetlab, "--hosts=100", "--", self, absl::StrCat("--enter=", host), "--",
                         "/bin/bash", "-c",
                         "PATH=$PATH:/usr/sbin:/sbin; ip -4 -brief address show eth0; (echo "
                         ">/dev/tcp/10.77.0.50/9) 2>&1 | grep -m1 -o 'Connection refused'"});
    EXPECT_EQ(program.Finish().code, 0);
    ASSERT_THAT(program.out(), SizeIs(2)) << absl::StrJoin(program.err(), "\n");
    EXPECT_THAT(program.out()[0],
                HasSubstr(std::string(host) == "0" ? "10.77.0.1/16" : "10.77.0.100/16"));
    EXPECT_EQ(program.out()[1], "Connection refused");
  }
}

TEST_F(NetlabTest, NothingIsLeftWhenItIsKilled) {
  // Also what the command has put into the background, in a session of its own.
  const std::string marker = absl::StrCat("netlab_test_", getpid());
  TestProgram program({kNetlab, "--hosts=2", "--", "/bin/sh", "-c",
                       absl::StrCat("setsid sh -c 'sleep 1000; : ", marker,
                                    "' & readlink /proc/self/ns/net; echo up; sleep 1000")});
  const std::string network = program.AwaitLine("net:[");
  program.AwaitLine("up");
  ASSERT_NE(network, "");
  ASSERT_FALSE(Traces(marker, network).empty());
  program.Kill(SIGKILL);
  EXPECT_EQ(program.Finish().code, 137);
  const Deadline deadline = Deadline::In(absl::Seconds(10));
  std::vector<std::string> left = Traces(marker, network);
  while (!left.empty() && !deadline.passed()) left = Traces(marker, network);
  EXPECT_THAT(left, ElementsAre());
}

TEST_F(NetlabTest, ACommandThatDoesNotExistIsNamed) {
  TestProgram program({kNetlab, "--", "/no/such/command"});
  EXPECT_EQ(program.Finish().code, 127);
  EXPECT_THAT(program.err(), ElementsAre(HasSubstr("/no/such/command: No such file")));
}

TEST(NetlabFlagsTest, MistakesAreOneLineAndExitCodeTwo) {
  for (const char* flag : {"--hosts=0", "--hosts=1000", "--bandwidth=fast", "--host=3", "--burst=1",
                           "--burst=1KiB", "--enter=7", "--no_such_flag"}) {
    TestProgram program({kNetlab, flag, "--", "/bin/true"});
    EXPECT_EQ(program.Finish().code, 2) << flag;
    EXPECT_THAT(program.err(), SizeIs(1)) << flag;
    EXPECT_THAT(program.out(), ElementsAre()) << flag;
  }
}

}  // namespace
}  // namespace gradsync
