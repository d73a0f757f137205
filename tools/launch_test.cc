// Runs the program itself, with stand-ins for workers and servers.

#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class LaunchTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {"tools/launch", "--worker_binary=tools/test_member",
                                     "--server_binary=tools/test_member"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto process = Subprocess::Start(argv, [this](absl::string_view line, bool is_stderr) {
      (is_stderr ? errors_ : lines_).push_back(std::string(line));
    });
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
  }

  ExitStatus Finish() {
    while (!process_->exit_status().has_value()) process_->Poll();
    return *process_->exit_status();
  }

  ExitStatus Run(const std::vector<std::string>& flags) {
    Start(flags);
    return Finish();
  }

  // Waits until both workers of a job that hangs have printed that they are up.
  void AwaitHang() {
    while (std::count_if(lines_.begin(), lines_.end(),
                         [](absl::string_view line) { return absl::EndsWith(line, " up"); }) < 2) {
      process_->Poll();
      ASSERT_FALSE(process_->exit_status().has_value());
    }
  }

  std::unique_ptr<Subprocess> process_;
  std::vector<std::string> lines_;
  std::vector<std::string> errors_;
};

TEST_F(LaunchTest, EveryLineHasTheNameOfItsProcessInFront) {
  EXPECT_TRUE(Run({"--workers=11", "--server=1", "--", "--others_do=lines:2"}).ok());
  EXPECT_THAT(lines_, Contains("[worker 3]  line 0"));
  EXPECT_THAT(lines_, Contains("[worker 10] line 0"));
  EXPECT_THAT(lines_, Contains(StartsWith("[server 0]  server of -1 ")));
  EXPECT_THAT(lines_, Contains(StartsWith("[worker 10] worker10 of 11 topology ps")));
  EXPECT_THAT(errors_, AllOf(SizeIs(11), Contains("[worker 10] line 1")));
}

TEST_F(LaunchTest, CoresAreSharedByTheWorkersUnlessThreadsAreGiven) {
  const unsigned cores = std::thread::hardware_concurrency();
  EXPECT_TRUE(Run({"--workers=2"}).ok());
  EXPECT_THAT(lines_,
              Contains(EndsWith(absl::StrCat(" threads ", std::max(1u, cores / 2)))).Times(2));
  lines_.clear();
  EXPECT_TRUE(Run({"--workers=2", "--", "--threads=5"}).ok());
  EXPECT_THAT(lines_, Contains(EndsWith(" threads 5")).Times(2));
}

TEST_F(LaunchTest, TheFirstFailureGivesTheExitCodeAndIsNamed) {
  const ExitStatus status = Run({"--workers=3", "--servers=1", "--", "--victim=worker2",
                                 "--victim_does=signal:9", "--others_do=exit:0"});
  EXPECT_EQ(status.code, 137);
  EXPECT_THAT(errors_,
              Contains(AllOf(StartsWith("launch: worker 2 (pid "),
                             EndsWith("killed by signal 9 (SIGKILL); stopping the rest"))));
}

TEST_F(LaunchTest, AnInterruptEndsAllProcesses) {
  Start({"--workers=2", "--", "--others_do=hang"});
  AwaitHang();
  process_->Kill(SIGINT);
  EXPECT_EQ(Finish().code, 130);
  EXPECT_THAT(errors_, ElementsAre("launch: interrupted by signal 2 (SIGINT); stopping the rest"));
}

TEST_F(LaunchTest, NoProcessSurvivesAKilledLaunch) {
  // Orphans come to this process, so that it can see them end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Start({"--workers=2", "--", "--others_do=stubborn"});
  AwaitHang();
  process_->Kill(SIGKILL);
  Finish();
  int orphans = 0;
  int status = 0;
  while (wait(&status) > 0) {
    ++orphans;
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  EXPECT_EQ(orphans, 2);
}

TEST_F(LaunchTest, BadFlagsAreOneLineAndExitCode2) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--workers=0"}, "launch: --workers: expected at least 1, found 0"},
      {{"--servers=-1"}, "launch: --servers: expected at least 0, found -1"},
      {{"--wrokers=2"}, "--wrokers"},
      {{"--workers=two"}, "--workers"},
      {{"--", "two"}, "launch: expected worker flags after --, found \"two\""},
  };
  for (const auto& [flags, expected] : cases) {
    errors_.clear();
    EXPECT_EQ(Run(flags).code, 2);
    EXPECT_THAT(errors_, ElementsAre(HasSubstr(expected)));
  }
}

}  // namespace
}  // namespace gradsync
