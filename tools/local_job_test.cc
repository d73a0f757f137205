#include "tools/local_job.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

char StateOfProcess(int pid) {
  std::string name;
  char state = '\0';
  std::ifstream(absl::StrCat("/proc/", pid, "/stat")) >> pid >> name >> state;
  return state;
}

void AwaitThat(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

class LocalJobTest : public ::testing::Test {
 protected:
  LocalJobTest() {
    options_.worker_binary = "tools/test_member";
    options_.server_binary = options_.worker_binary;
    options_.settle = absl::Milliseconds(100);
    options_.grace = absl::Milliseconds(200);
    options_.on_line = [this](absl::string_view process, absl::string_view line, bool is_stderr) {
      lines_.push_back(absl::StrCat(process, is_stderr ? "! " : ": ", line));
    };
    options_.on_start = [this](absl::string_view, int pid) { pids_.push_back(pid); };
    options_.on_failure = [this](absl::string_view failure) {
      failures_.push_back(std::string(failure));
    };
  }

  ~LocalJobTest() override {
    for (int pid : pids_) {
      EXPECT_EQ(kill(pid, 0), -1) << "process " << pid << " was left behind";
      EXPECT_EQ(errno, ESRCH);
    }
  }

  void Behave(const std::string& victim, const std::string& does, const std::string& others) {
    const std::vector<std::string> flags = {absl::StrCat("--victim=", victim),
                                            absl::StrCat("--victim_does=", does),
                                            absl::StrCat("--others_do=", others)};
    options_.worker_flags = flags;
    options_.server_flags = flags;
  }

  LocalJobResult Run() {
    absl::StatusOr<LocalJobResult> result = RunLocalJob(options_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : LocalJobResult();
  }

  LocalJobOptions options_;
  std::vector<std::string> lines_;
  std::vector<int> pids_;
  std::vector<std::string> failures_;
};

TEST_F(LocalJobTest, OnlyRank0GetsWhatIsAddedToTheEnvironment) {
  setenv("GRADSYNC_A", "ours", 1);
  options_.workers = 2;
  options_.servers = 1;
  Behave("", "", "tell:GRADSYNC_A");
  options_.rank_0_environment = {"GRADSYNC_B=1", "GRADSYNC_A=another"};
  EXPECT_EQ(Run().exit_code, 0);
  EXPECT_THAT(lines_, AllOf(Contains("worker 0: another"), Contains("worker 1: ours"),
                            Contains("server 0: ours")));
}

TEST_F(LocalJobTest, WorkersGetTheirRanksAndTheAddressesOfServersAndStore) {
  options_.workers = 3;
  options_.servers = 2;
  options_.worker_flags = {"--threads=7"};
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(failures_.empty());
  EXPECT_EQ(pids_.size(), 5);
  const std::string servers = "servers 127.0.0.1:1111+127.0.0.1:1111 threads 7";
  EXPECT_THAT(lines_, Contains("worker 0: worker0 of 3 topology ps master 127.0.0.1:0 " + servers));
  EXPECT_THAT(lines_,
              Contains("worker 2: worker2 of 3 topology ps master 127.0.0.1:2222 " + servers));
}

TEST_F(LocalJobTest, AJobWithoutServersLeavesTheTopologyToItsFlags) {
  options_.workers = 2;
  options_.worker_flags = {"--topology=ring"};
  EXPECT_EQ(Run().exit_code, 0);
  EXPECT_THAT(lines_, Contains(StartsWith("worker 1: worker1 of 2 topology ring")));
}

TEST_F(LocalJobTest, AllOutputArrivesInOrderWithItsStream) {
  Behave("worker0", "lines:1000", "exit:0");
  EXPECT_EQ(Run().exit_code, 0);
  std::vector<std::string> errors;
  for (const std::string& line : lines_) {
    if (absl::StartsWith(line, "worker 0! ")) errors.push_back(line);
  }
  ASSERT_EQ(errors.size(), 500);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(errors[i], absl::StrCat("worker 0! line ", 2 * i + 1));
  EXPECT_EQ(lines_.size(), 1001);
}

TEST_F(LocalJobTest, MetricsAreCollectedByRankAndByServer) {
  options_.workers = 2;
  options_.servers = 1;
  options_.collect_metrics = true;
  const LocalJobResult result = Run();
  EXPECT_THAT(result.worker_metrics, ElementsAre("worker0", "worker1"));
  EXPECT_THAT(result.server_metrics, ElementsAre("server"));
}

TEST_F(LocalJobTest, TheFirstFailureIsNamedAndTheRestIsStopped) {
  options_.workers = 3;
  options_.servers = 1;
  Behave("worker1", "signal:9", "hang");
  const MonotonicTime start = MonotonicTime::Now();
  const LocalJobResult result = Run();
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(5));
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_THAT(result.failure,
              AllOf(StartsWith("worker 1 (pid "), HasSubstr("): killed by signal 9 (SIGKILL), ")));
  EXPECT_EQ(result.failure_detail, "about to die");
  EXPECT_THAT(failures_, ElementsAre(result.failure));
}

TEST_F(LocalJobTest, AProcessThatWasDyingWhenAnotherFailedIsNamed) {
  options_.workers = 2;
  options_.settle = absl::Seconds(30);
  Behave("worker1", "headless", "drain:1");
  int up = 0;
  std::thread killer;
  const auto record = options_.on_line;
  options_.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    record(process, line, is_stderr);
    if (line == "up" || absl::StartsWith(line, "worker1 ")) ++up;
    if (up < 2 || killer.joinable()) return;
    killer = std::thread([pids = pids_] {
      AwaitThat([&] { return StateOfProcess(pids[1]) == 'Z'; });
      kill(pids[0], SIGTERM);
      AwaitThat([&] { return kill(pids[0], 0) != 0; });
      kill(pids[1], SIGKILL);
    });
  };
  const LocalJobResult result = Run();
  killer.join();
  EXPECT_THAT(lines_, Contains(HasSubstr("worker 0! ")));
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_THAT(failures_, ElementsAre(HasSubstr("): killed by signal 9 (SIGKILL), ")));
}

TEST_F(LocalJobTest, AServerThatFailsEndsTheJob) {
  options_.workers = 2;
  options_.servers = 1;
  Behave("server", "exit:3", "hang");
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.failure, AllOf(StartsWith("server 0 (pid "), EndsWith("): exit code 3")));
}

TEST_F(LocalJobTest, AProcessThatIgnoresSigtermIsKilled) {
  options_.workers = 2;
  Behave("worker1", "exit:1", "stubborn");
  EXPECT_EQ(Run().exit_code, 1);
}

TEST_F(LocalJobTest, BadInputStopsTheRestAtOnce) {
  options_.workers = 2;
  options_.settle = absl::Seconds(100);
  Behave("worker1", "exit:2", "hang");
  const MonotonicTime start = MonotonicTime::Now();
  EXPECT_EQ(Run().exit_code, 2);
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(20));
}

TEST_F(LocalJobTest, AProcessThatNeverSaysWhereItListensIsNamed) {
  options_.servers = 1;
  options_.start_timeout = absl::Milliseconds(200);
  Behave("server", "silent", "hang");
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.failure, AllOf(StartsWith("server 0 (pid "),
                                    EndsWith("did not say where it listens within 200ms")));
}

TEST_F(LocalJobTest, ServersThatOutliveTheWorkersAreAFailure) {
  options_.servers = 1;
  options_.linger = absl::Milliseconds(200);
  Behave("server", "hang", "exit:0");
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.failure, HasSubstr("still runs 200ms after all workers have ended"));
}

// The job was waited for for ever.
TEST_F(LocalJobTest, AWorkerThatOutlivesRank0IsAFailureWhereItIsNotToDoSo) {
  options_.workers = 3;
  options_.outlive = absl::Milliseconds(200);
  Behave("worker1", "hang", "exit:0");
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.failure, AllOf(StartsWith("worker 1 (pid "),
                                    EndsWith("): still runs 200ms after rank 0 has ended")));
  Behave("worker1", "late:0", "exit:0");
  options_.outlive = absl::Seconds(100);
  EXPECT_EQ(Run().exit_code, 0);
  options_.outlive = absl::InfiniteDuration();
  EXPECT_EQ(Run().exit_code, 0);
}

TEST_F(LocalJobTest, Rank0MayEndAfterTheOthers) {
  options_.workers = 2;
  options_.outlive = absl::Milliseconds(1);
  Behave("worker0", "late:0", "exit:0");
  EXPECT_EQ(Run().exit_code, 0);
}

TEST_F(LocalJobTest, AWorkerThatIsStoppedForTooLongIsAFailure) {
  for (const char* others : {"exit:0", "hang"}) {
    options_.workers = 2;
    options_.stopped = absl::Milliseconds(200);
    options_.settle = absl::ZeroDuration();
    Behave("worker1", absl::StrCat("signal:", SIGSTOP), others);
    const LocalJobResult result = Run();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.failure,
                AllOf(StartsWith("worker 1 (pid "), EndsWith("): stopped for 200ms")));
  }
}

TEST_F(LocalJobTest, AJobThatIsStoppedAsAWholeIsNoFailure) {
  std::atomic<int> interrupt{0};
  options_.workers = 2;
  options_.stopped = absl::Milliseconds(50);
  options_.interrupt = &interrupt;
  Behave("", "", absl::StrCat("signal:", SIGSTOP));
  int stopped = 0;
  const auto record = options_.on_line;
  std::thread patience;
  options_.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    record(process, line, is_stderr);
    if (line != "about to die" || ++stopped < 2) return;
    patience = std::thread([&] {
      Mutex mutex;
      CondVar never;
      MutexLock lock(&mutex);
      const Deadline end = Deadline::In(absl::Milliseconds(300));
      while (!never.WaitWithDeadline(&mutex, end)) {
      }
      interrupt = SIGINT;
    });
  };
  EXPECT_EQ(Run().failure, "interrupted by signal 2 (SIGINT)");
  patience.join();
}

TEST_F(LocalJobTest, AFailureIsAnErrorToThoseWhoAskForOne) {
  EXPECT_TRUE(RunLocalJobOrFail(options_).ok());
  Behave("worker0", "exit:2", "exit:0");
  const absl::Status refused = RunLocalJobOrFail(options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(StartsWith("worker 0 (pid "), EndsWith("): exit code 2")));
  Behave("worker0", "exit:3", "exit:0");
  EXPECT_EQ(RunLocalJobOrFail(options_).status().code(), absl::StatusCode::kAborted);
  const std::atomic<int> interrupt{SIGINT};
  options_.interrupt = &interrupt;
  Behave("", "", "hang");
  EXPECT_EQ(RunLocalJobOrFail(options_).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(LocalJobTest, AnInterruptReachesAllProcesses) {
  std::atomic<int> interrupt{0};
  options_.workers = 2;
  options_.interrupt = &interrupt;
  options_.settle = absl::Seconds(100);
  Behave("", "", "hang");
  auto record = options_.on_line;
  options_.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    record(process, line, is_stderr);
    if (process == "worker 1" && line == "up") interrupt = SIGINT;
  };
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.failure, "interrupted by signal 2 (SIGINT)");
}

TEST_F(LocalJobTest, ASecondInterruptKillsWhoDoesNotEnd) {
  const std::atomic<int> interrupt{SIGTERM};
  std::atomic<int> interrupts{1};
  options_.workers = 2;
  options_.interrupt = &interrupt;
  options_.interrupts = &interrupts;
  options_.drain = absl::Hours(1);
  Behave("", "", "stubborn");
  auto record = options_.on_line;
  options_.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    record(process, line, is_stderr);
    if (line == "up") interrupts = 2;
  };
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_EQ(result.drain_failure, "");
}

TEST_F(LocalJobTest, AWorkerThatTheSignalKillsBeforeItTrainsIsWhyOthersCannotDrain) {
  std::atomic<int> interrupt{0};
  options_.workers = 2;
  options_.interrupt = &interrupt;
  Behave("worker0", "hang", "drain:1");
  int up = 0;
  const auto record = options_.on_line;
  options_.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    record(process, line, is_stderr);
    if (line == "up" && ++up == 2) interrupt = SIGTERM;
  };
  const LocalJobResult result = Run();
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_EQ(result.drain_failure, "");
}

TEST_F(LocalJobTest, AMissingBinaryIsAnErrorThatNamesIt) {
  options_.servers = 1;
  options_.worker_binary = "tools/no_such_worker";
  Behave("server", "hang", "hang");
  const absl::Status status = RunLocalJob(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tools/no_such_worker"));
}

TEST_F(LocalJobTest, ProcessesRunOnTheirHostsAndListenThere) {
  NetworkLabOptions lab_options;
  lab_options.hosts = 3;
  const auto lab = NetworkLab::Create(lab_options);
  if (absl::IsPermissionDenied(lab.status()) || absl::IsNotFound(lab.status())) {
    GTEST_SKIP() << lab.status();
  }
  ASSERT_TRUE(lab.ok()) << lab.status();
  options_.lab = lab->get();
  options_.workers = 2;
  options_.servers = 2;
  options_.hosts = {1, 0, 1, 2};
  std::vector<std::string> at;  // "worker 0 is on host 1"
  const auto inode = [](const std::string& path) {
    struct stat found = {};
    return stat(path.c_str(), &found) == 0 ? found.st_ino : 0;
  };
  options_.on_start = [&](absl::string_view process, int pid) {
    const auto network = inode(absl::StrCat("/proc/", pid, "/ns/net"));
    for (int host = 0; host < lab_options.hosts; ++host) {
      if (network == inode(absl::StrCat("/proc/self/fd/", options_.lab->inside(host).network))) {
        at.push_back(absl::StrCat(process, " is on host ", host));
      }
    }
  };
  EXPECT_EQ(Run().exit_code, 0);
  EXPECT_THAT(at, ElementsAre("server 0 is on host 1", "server 1 is on host 2",
                              "worker 0 is on host 1", "worker 1 is on host 0"));
  EXPECT_THAT(lines_, Contains(HasSubstr("worker0 of 2 topology ps master 10.77.0.2:0")));
  options_.hosts = {1, 0, 1};
  EXPECT_EQ(RunLocalJob(options_).status().code(), absl::StatusCode::kInvalidArgument);
  options_.hosts = {1, 0, 1, 3};
  EXPECT_EQ(RunLocalJob(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LocalJobTest, AJobWithoutWorkersIsAnError) {
  options_.workers = 0;
  EXPECT_EQ(RunLocalJob(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
