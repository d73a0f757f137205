// Runs the program itself, with stand-ins for workers and servers.

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"
#include "core/base/write_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::unique_ptr<TestProgram> Start(const std::vector<std::string>& flags) {
  std::vector<std::string> argv = {"tools/launch", "--worker_binary=tools/test_member",
                                   "--server_binary=tools/test_member"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return std::make_unique<TestProgram>(argv);
}

// Waits until both workers of a job that hangs have printed that they are up.
void AwaitHang(TestProgram* launch) {
  launch->Await([launch] {
    return std::count_if(launch->out().begin(), launch->out().end(),
                         [](absl::string_view line) { return absl::EndsWith(line, " up"); }) == 2;
  });
}

TEST(LaunchTest, EveryLineHasTheNameOfItsProcessInFront) {
  const auto launch = Start({"--workers=11", "--server=1", "--", "--others_do=lines:2"});
  EXPECT_TRUE(launch->Finish().ok());
  EXPECT_THAT(launch->out(), Contains("[worker 3]  line 0"));
  EXPECT_THAT(launch->out(), Contains("[worker 10] line 0"));
  EXPECT_THAT(launch->out(), Contains(StartsWith("[server 0]  server of -1 ")));
  EXPECT_THAT(launch->out(), Contains(StartsWith("[worker 10] worker10 of 11 topology ps")));
  EXPECT_THAT(launch->err(), AllOf(SizeIs(11), Contains("[worker 10] line 1")));
}

TEST(LaunchTest, CoresAreSharedByTheWorkersUnlessThreadsAreGiven) {
  const int cores = AvailableCores();
  const auto shared = Start({"--workers=2"});
  EXPECT_TRUE(shared->Finish().ok());
  EXPECT_THAT(shared->out(),
              Contains(EndsWith(absl::StrCat(" threads ", std::max(1, cores / 2)))).Times(2));
  const auto given = Start({"--workers=2", "--", "--threads=5"});
  EXPECT_TRUE(given->Finish().ok());
  EXPECT_THAT(given->out(), Contains(EndsWith(" threads 5")).Times(2));
}

TEST(LaunchTest, TheFirstFailureGivesTheExitCodeAndIsNamed) {
  const auto launch = Start({"--workers=3", "--servers=1", "--", "--victim=worker2",
                             "--victim_does=signal:9", "--others_do=exit:0"});
  EXPECT_EQ(launch->Finish().code, 137);
  EXPECT_THAT(launch->err(),
              Contains(AllOf(
                  StartsWith("launch: worker 2 (pid "), HasSubstr("killed by signal 9 (SIGKILL), "),
                  // Where the kernel counts whom it kills for want of memory, it says so.
                  AnyOf(HasSubstr("memory"), HasSubstr("the kernel has killed")),
                  EndsWith("; stopping the rest"))));
}

// Who ends first has only heard of the cause.
TEST(LaunchTest, WhatAProcessSaysThatFailsComesBeforeItsName) {
  const auto launch = Start(
      {"--workers=3", "--", "--victim=worker2", "--victim_does=fail:1", "--others_do=exit:0"});
  EXPECT_EQ(launch->Finish().code, 1);
  EXPECT_THAT(launch->err(), Contains(AllOf(StartsWith("launch: rank 1 lost [worker 2 (pid "),
                                            EndsWith("): exit code 1]; stopping the rest"))));
}

TEST(LaunchTest, AWorkerThatHangsWhenRank0HasEndedIsNamed) {
  const auto launch = Start({"--workers=2", "--", "--topology=ring", "--failure_timeout=100ms",
                             "--victim=worker1", "--victim_does=hang"});
  EXPECT_EQ(launch->Finish().code, 1);
  EXPECT_THAT(launch->err(),
              ElementsAre(AllOf(StartsWith("launch: worker 1 (pid "),
                                HasSubstr("): still runs 5.1s after rank 0 has ended"))));
}

TEST(LaunchTest, AFailedJobIsStartedAgainAsOftenAsAsked) {
  const auto launch = Start({"--workers=2", "--servers=1", "--max_restarts=2", "--",
                             "--victim=worker1", "--victim_does=signal:9"});
  EXPECT_EQ(launch->Finish().code, 137);
  EXPECT_THAT(launch->err(),
              AllOf(Contains("launch: restart 1 of 2"), Contains("launch: restart 2 of 2"),
                    Contains(HasSubstr("stopping the rest")).Times(3)));
  for (const char* process : {"[worker 0]", "[worker 1]", "[server 0]"}) {
    EXPECT_THAT(launch->out(), Contains(absl::StrCat(process, " attempt 1")));
    EXPECT_THAT(launch->out(), Contains(absl::StrCat(process, " attempt 2")));
  }
}

TEST(LaunchTest, AJobThatSucceedsOrRefusesItsFlagsIsNotStartedAgain) {
  for (const int code : {0, 2}) {
    const auto launch =
        Start({"--workers=2", "--max_restarts=2", "--", absl::StrCat("--others_do=exit:", code)});
    EXPECT_EQ(launch->Finish().code, code);
    EXPECT_THAT(launch->err(), Not(Contains(HasSubstr("restart"))));
  }
}

// Others who hear of it may end before the rank that has refused its input.
TEST(LaunchTest, AJobOfWhichOneRankRefusesItsInputIsNotStartedAgain) {
  const auto launch = Start({"--workers=2", "--max_restarts=2", "--", "--victim=worker0",
                             "--victim_does=late:2", "--others_do=fail:1"});
  EXPECT_EQ(launch->Finish().code, 2);
  EXPECT_THAT(launch->err(), AllOf(Contains(StartsWith("launch: rank 1 lost [worker 1 (pid ")),
                                   Not(Contains(HasSubstr("restart")))));
}

// A program of one's own; of //worker, operations_test has what may end so.
TEST(LaunchTest, ARank0ThatEndsBeforeItListensIsAFailure) {
  const auto launch =
      Start({"--workers=2", "--", "--victim=worker0", "--victim_does=done", "--others_do=hang"});
  EXPECT_EQ(launch->Finish().code, 1);
  EXPECT_THAT(launch->err(), Contains(HasSubstr("worker 0 (pid ")).Times(1));
  EXPECT_THAT(launch->err(), Contains(HasSubstr("ended before it said where it listens")));
}

TEST(LaunchTest, AServerThatEndsBeforeItListensIsAFailure) {
  const auto launch = Start({"--workers=2", "--servers=1", "--server_binary=/bin/true"});
  EXPECT_EQ(launch->Finish().code, 1);
  EXPECT_THAT(launch->err(), ElementsAre(HasSubstr("server 0 (pid ")));
}

// It was killed, and its workers with it.
TEST(LaunchTest, AStdoutThatIsClosedIsALineAndExitCode1) {
  const std::string code = ::testing::TempDir() + "/code_of_launch";
  TestProgram launch({"/bin/sh", "-c",
                      // First it is waited for that the reader has gone.
                      "{ (trap '' PIPE; while echo; do sleep 0.01; done) 2> /dev/null; "
                      "tools/launch --worker_binary=tools/test_member --workers=2 -- "
                      "--others_do=lines:2; echo $? > " +
                          code + "; } | true"});
  launch.Finish();
  EXPECT_EQ(std::ifstream(code).get(), '1');
  EXPECT_THAT(launch.err(),
              UnorderedElementsAre("[worker 0] line 1", "[worker 1] line 1",
                                   "launch: stdout: expected it to take all output, found it "
                                   "closed or full"));
}

TEST(LaunchTest, ThatItOutlivesItsReadersIsNotPassedOn) {
  const std::string script = ::testing::TempDir() + "/dies_of_sigpipe";
  ASSERT_TRUE(WriteFileAtomically(script, "#!/bin/sh\nkill -s PIPE $$\nexit 0\n").ok());
  ASSERT_EQ(chmod(script.c_str(), 0700), 0);
  TestProgram launch({"tools/launch", "--worker_binary=" + script, "--workers=1"});
  EXPECT_EQ(launch.Finish().code, 128 + SIGPIPE);
}

TEST(LaunchTest, AnInterruptEndsAllProcesses) {
  const auto launch = Start({"--workers=2", "--", "--others_do=hang"});
  AwaitHang(launch.get());
  launch->Kill(SIGINT);
  EXPECT_EQ(launch->Finish().code, 130);
  EXPECT_THAT(launch->err(),
              ElementsAre("launch: interrupted by signal 2 (SIGINT); stopping the rest"));
}

// The signal was all that was said, and the code was that of a job with a checkpoint.
TEST(LaunchTest, AJobThatCannotDrainIsExplainedByTheLastLineAndTheCode) {
  const auto drained = Start({"--workers=2", "--", "--others_do=drain:143"});
  AwaitHang(drained.get());
  drained->Kill(SIGTERM);
  EXPECT_EQ(drained->Finish().code, 143);
  EXPECT_THAT(drained->err(), SizeIs(1));
  const auto launch = Start(
      {"--workers=2", "--", "--victim=worker1", "--victim_does=drain:1", "--others_do=drain:143"});
  AwaitHang(launch.get());
  launch->Kill(SIGTERM);
  EXPECT_EQ(launch->Finish().code, 1);
  ASSERT_FALSE(launch->err().empty());
  EXPECT_THAT(launch->err().back(),
              AllOf(StartsWith("launch: the job did not end in good order: worker: "
                               "PERMISSION_DENIED: no checkpoint in / [worker 1 (pid "),
                    EndsWith("): exit code 1]")));
}

TEST(LaunchTest, AWorkerThatIsKilledWhileItDrainsIsNamed) {
  const auto launch = Start({"--workers=2", "--grace=200ms", "--", "--victim=worker1",
                             "--victim_does=stubborn", "--others_do=drain:143"});
  AwaitHang(launch.get());
  launch->Kill(SIGTERM);
  EXPECT_EQ(launch->Finish().code, 137);
  ASSERT_FALSE(launch->err().empty());
  EXPECT_THAT(launch->err().back(),
              AllOf(StartsWith("launch: the job did not end in good order: worker 1 (pid "),
                    EndsWith("killed by signal 9 (SIGKILL), for it had not ended within 200ms")));
}

// The culprit was looked for where a line begins, which is the time.
TEST(LaunchTest, WhatAProcessSaysAsJsonBeginsWithTheCulpritToo) {
  const auto launch = Start(
      {"--workers=2", "--", "--victim=worker0", "--victim_does=report:1", "--others_do=exit:0"});
  EXPECT_EQ(launch->Finish().code, 1);
  EXPECT_THAT(launch->err(), Contains(StartsWith("launch: rank 1 lost: \"gone\" [worker 0 (pid ")));
}

// It said nothing, and ended with 0.
TEST(LaunchTest, AFullStdoutIsALineAndExitCode1) {
  TestProgram launch({"/bin/sh", "-c",
                      "exec tools/launch --worker_binary=tools/test_member --workers=2 -- "
                      "--others_do=lines:2 > /dev/full"});
  EXPECT_EQ(launch.Finish().code, 1);
  EXPECT_THAT(launch.err(),
              UnorderedElementsAre("[worker 0] line 1", "[worker 1] line 1",
                                   "launch: stdout: expected it to take all output, found it "
                                   "closed or full"));
}

// Waits until all processes that have lost their parent, which come to this one, have ended. Returns
// how many ended by SIGKILL.
int AwaitKilledOrphans() {
  int killed = 0;
  int status = 0;
  while (wait(&status) > 0) {
    // Those that do not are their guards.
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++killed;
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  }
  return killed;
}

TEST(LaunchTest, NoProcessSurvivesAKilledLaunch) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  // What it cannot remove stays in the test's own folder.
  ASSERT_EQ(setenv("TMPDIR", ::testing::TempDir().c_str(), /*overwrite=*/1), 0);
  const auto launch = Start({"--workers=2", "--", "--others_do=stubborn"});
  AwaitHang(launch.get());
  launch->Kill(SIGKILL);
  launch->Finish();
  EXPECT_EQ(AwaitKilledOrphans(), 2);
}

// The shell was killed and the worker below it trained on.
TEST(LaunchTest, NoWorkerBelowAShellScriptSurvivesAKilledLaunch) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  ASSERT_EQ(setenv("TMPDIR", ::testing::TempDir().c_str(), /*overwrite=*/1), 0);
  const std::string script = ::testing::TempDir() + "/below_two_shells";
  ASSERT_TRUE(WriteFileAtomically(script,
                                  "#!/bin/sh\n"
                                  "/bin/sh -c 'tools/test_member \"$@\"; exit $?' member \"$@\"\n"
                                  "exit $?\n")
                  .ok());
  ASSERT_EQ(chmod(script.c_str(), 0700), 0);
  TestProgram launch(
      {"tools/launch", "--worker_binary=" + script, "--workers=2", "--", "--others_do=stubborn"});
  AwaitHang(&launch);
  launch.Kill(SIGKILL);
  launch.Finish();
  // Two shells and a member of each worker, but for those that a dying shell has still waited for.
  EXPECT_GE(AwaitKilledOrphans(), 2);
}

// launch put a handler over what nohup had said, and ended the job when its terminal was closed.
TEST(LaunchTest, ASignalThatIsIgnoredStaysSo) {
  TestProgram launch({"/bin/sh", "-c",
                      "trap '' HUP USR1; exec tools/launch --worker_binary=tools/test_member "
                      "--workers=2 -- --others_do=hang"});
  AwaitHang(&launch);
  for (int signal : {SIGHUP, SIGUSR1}) launch.Kill(signal);
  launch.Kill(SIGTERM);
  EXPECT_EQ(launch.Finish().code, 128 + SIGTERM);
  EXPECT_THAT(launch.err(),
              ElementsAre("launch: interrupted by signal 15 (SIGTERM); stopping the rest"));
}

TEST(LaunchTest, SignalsThatAnnounceTheEndArePassedOn) {
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) {
    const auto launch =
        Start({"--workers=2", "--", absl::StrCat("--others_do=drain:", 128 + signal)});
    AwaitHang(launch.get());
    launch->Kill(signal);
    EXPECT_EQ(launch->Finish().code, 128 + signal);
    EXPECT_THAT(launch->err(), SizeIs(1));
  }
}

// Ranks of a job of their own took the rank and the number of ranks of the batch script.
TEST(LaunchTest, ItsProcessesSeeNothingOfTheLauncherThatStartedIt) {
  for (const char* variable : {"SLURM_PROCID", "RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK",
                               "MASTER_ADDR", "SLURM_STEP_NODELIST"}) {
    TestProgram launch({"/usr/bin/env", absl::StrCat(variable, "=3"), "SLURM_JOB_ID=7",
                        "tools/launch", "--worker_binary=tools/test_member", "--workers=1", "--",
                        absl::StrCat("--others_do=tell:", variable)});
    EXPECT_EQ(launch.Finish().code, 1) << variable;  // printenv: there is none
    EXPECT_THAT(launch.out(), Not(Contains(HasSubstr("[worker 0] 3")))) << variable;
  }
  TestProgram launch({"/usr/bin/env", "SLURM_JOB_ID=7", "tools/launch",
                      "--worker_binary=tools/test_member", "--workers=1", "--",
                      "--others_do=tell:SLURM_JOB_ID"});
  EXPECT_EQ(launch.Finish().code, 0);
  EXPECT_THAT(launch.out(), Contains("[worker 0] 7"));
}

TEST(LaunchTest, BadFlagsAreOneLineAndExitCode2) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--workers=0"}, "launch: --workers: expected at least 1, found 0"},
      {{"--max_restarts=-1"}, "launch: --max_restarts: expected at least 0, found -1"},
      {{"--servers=-1"}, "launch: --servers: expected at least 0, found -1"},
      {{"--grace=-1s"}, "launch: --grace: expected a time of at least 0, found \"-1s\""},
      // Rank 1 was blamed.
      {{"--timeout=-5s"}, "launch: --timeout: expected more than 0s, found \"-5s\""},
      {{"--timeout=0s"}, "launch: --timeout: expected more than 0s, found \"0\""},
      {{"--wrokers=2"}, "--wrokers"},
      {{"--workers=two"}, "--workers"},
      // Were unknown names, and nothing was said of the dashes.
      {{"--topology=ring"}, "found one of the workers: put it behind --, as in -- --topology=..."},
      {{"--learning_rate=1"}, "did you mean --lr of the workers? It stands behind --"},
      {{"--interface=lo"}, "found one of the workers: put it behind --"},
      {{"--rank=1"},
       "found the workers' --rank, which this program gives each of them: leave it out"},
      {{"--master_addr=n0"}, "found the workers' --master, which this program gives each of them"},
      {{"--num_servers=1"}, "did you mean --servers?"},
      {{"--nproc_per_node=2"}, "did you mean --workers?"},
      {{"-np", "2"}, "did you mean --workers?"},
      {{"--", "two"}, "launch: expected worker flags after --, found \"two\""},
      {{"--", "two\n\x1b[2J"}, R"(launch: expected worker flags after --, found "two\n\x1b[2J")"},
      {{"--two\n\x1b[2J"}, R"(--two\n\x1b[2J)"},
  };
  for (const auto& [flags, expected] : cases) {
    const auto launch = Start(flags);
    EXPECT_EQ(launch->Finish().code, 2);
    EXPECT_THAT(launch->err(), ElementsAre(HasSubstr(expected)));
  }
}

// They waited until a time-out, and others were blamed.
TEST(LaunchTest, AWorkersOwnFlagBehindTheDashesIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--rank=1",
       "launch: --rank: expected to be left out, as launch gives each worker its own, "
       "found behind --"},
      {"--world_size=3",
       "launch: --world_size: expected to be left out, as launch's --workers=2, "
       "before --, says it to each worker, found \"3\" behind --"}};
  for (const auto& [flag, expected] : cases) {
    TestProgram launch({"tools/launch", "--workers=2", "--", "--topology=ring", flag});
    EXPECT_EQ(launch.Finish().code, 2);
    EXPECT_THAT(launch.err(), ElementsAre(expected));
    // A program of the user's own may mean something else.
    EXPECT_NE(Start({"--workers=2", "--", flag})->Finish().code, 2) << flag;
  }
}

TEST(LaunchTest, AWrongTemporaryFolderIsOneLineAndExitCode2) {
  const auto with = [](const std::string& variable) {
    return TestProgram({"/usr/bin/env", variable, "tools/launch",
                        "--worker_binary=tools/test_member", "--workers=1"});
  };
  TestProgram bad = with("TMPDIR=/nope");
  EXPECT_EQ(bad.Finish().code, 2);
  EXPECT_THAT(bad.err(), ElementsAre("launch: TMPDIR: expected a folder that takes files, found "
                                     "\"/nope\": No such file or directory"));
  TestProgram empty = with("TMPDIR=");
  EXPECT_EQ(empty.Finish().code, 0);
}

// launch waited for ever, as the kernel kept nothing of its workers' ends.
TEST(LaunchTest, AParentThatIgnoresEndedChildrenChangesNothing) {
  for (const int code : {0, 3}) {
    TestProgram launch({"/usr/bin/env", "--ignore-signal=CHLD", "tools/launch",
                        "--worker_binary=tools/test_member", "--workers=2", "--",
                        absl::StrCat("--others_do=exit:", code)});
    EXPECT_EQ(launch.Finish().code, code);
  }
}

// Nothing came of the signal.
TEST(LaunchTest, ASignalThatIsBlockedByTheParentIsNoticed) {
  TestProgram launch({"/usr/bin/env", "--block-signal=TERM", "tools/launch",
                      "--worker_binary=tools/test_member", "--workers=2", "--",
                      "--others_do=drain:143"});
  AwaitHang(&launch);
  launch.Kill(SIGTERM);
  EXPECT_EQ(launch.Finish().code, 143);
}

TEST(LaunchTest, AKillUnderALimitOfTimeMayBeTheLimits) {
  TestProgram launch({"/bin/sh", "-c",
                      "ulimit -t 1000; exec tools/launch --worker_binary=tools/test_member "
                      "--workers=2 -- --victim=worker1 --victim_does=signal:9 --others_do=exit:0"});
  EXPECT_EQ(launch.Finish().code, 137);
  EXPECT_THAT(launch.err(), Contains(AllOf(HasSubstr("killed by signal 9 (SIGKILL), "),
                                           AnyOf(HasSubstr("ulimit -t"), HasSubstr("oom_kill")))));
}

}  // namespace
}  // namespace gradsync
