// Every wait ended at a time of the wall clock: when that was set forward by more than --timeout, a
// job whose ranks were all well failed, and when it was set back, a rank that was lost was waited
// for until the clock had caught up.

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/sanitizers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/local_job.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Seconds; twenty times a second.
constexpr int kForward = 3600;
constexpr int kBack = -3600;

// Programs that are started meanwhile live by this clock; this one goes on by its own.
class LiveBy {
 public:
  explicit LiveBy(int step_seconds) {
    setenv("STEP_SECONDS", std::to_string(step_seconds).c_str(), /*overwrite=*/1);
    const std::string clock = std::filesystem::absolute("tests/stepping_clock.so");
    setenv("LD_PRELOAD", clock.c_str(), /*overwrite=*/1);
  }
  ~LiveBy() {
    unsetenv("LD_PRELOAD");
    unsetenv("STEP_SECONDS");
  }
};

// Sets `interrupt` if it still lives at the deadline.
class Watchdog {
 public:
  Watchdog(Deadline deadline, std::atomic<int>* interrupt)
      : thread_([this, deadline, interrupt] {
          MutexLock lock(&mutex_);
          while (!done_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
          }
          if (!done_) *interrupt = SIGTERM;
        }) {}
  ~Watchdog() {
    {
      MutexLock lock(&mutex_);
      done_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

struct Case {
  std::string topology;
  std::string link;
  std::string update;
  std::string consistency;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.topology << " over " << c.link << " " << c.update << " " << c.consistency;
}

class SteppingClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's library wants to be loaded before any clock";
  }
};

class WallClockTest : public SteppingClockTest, public ::testing::WithParamInterface<Case> {
 protected:
  WallClockTest() {
    const Case& c = GetParam();
    options_.worker_binary = "worker/worker";
    options_.server_binary = "ps_server/ps_server";
    options_.workers = 2;
    options_.servers = c.topology == "ps" ? 1 : 0;
    options_.worker_flags = {"--topology=" + c.topology,
                             "--link=" + c.link,
                             "--update=" + c.update,
                             "--consistency=" + c.consistency,
                             "--model=mlp",
                             "--batch_size=4",
                             "--threads=1",
                             "--log_every=1"};
    options_.settle = absl::Seconds(1);
    options_.grace = absl::Seconds(1);
  }

  // Interrupts the job after a minute and a half: it may hang.
  absl::StatusOr<LocalJobResult> Run() {
    std::atomic<int> interrupt{0};
    options_.interrupt = &interrupt;
    const Watchdog watchdog(Deadline::In(absl::Seconds(90)), &interrupt);
    return RunLocalJob(options_);
  }

  LocalJobOptions options_;
};

TEST_P(WallClockTest, AJobOutlivesClocksThatAreSet) {
  // Longer waits than between two settings of the clocks are certain at the start, where each waits
  // for the other's process.
  options_.worker_flags.insert(options_.worker_flags.end(), {"--steps=30", "--timeout=60s"});
  for (const int step : {kForward, kBack}) {
    const LiveBy live_by(step);
    const auto result = Run();
    ASSERT_TRUE(result.ok()) << result.status();
    if (absl::StrContains(result->failure_detail, "no headers of Gloo")) GTEST_SKIP();
    EXPECT_EQ(result->exit_code, 0) << step << ": " << DescribeFailure(*result);
  }
}

class LostRankTest : public WallClockTest {};

TEST_P(LostRankTest, ALostRankIsNoticedInTimeByClocksThatAreSetBack) {
  const LiveBy live_by(kBack);
  int worker_1 = 0;
  constexpr absl::Duration kTimeout = absl::Seconds(8);
  MonotonicTime lost = MonotonicTime::InfiniteFuture();
  options_.worker_flags.insert(
      options_.worker_flags.end(),
      {"--steps=100000000", absl::StrCat("--timeout=", absl::FormatDuration(kTimeout))});
  options_.on_start = [&](absl::string_view process, int pid) {
    if (process == "worker 1") worker_1 = pid;
  };
  options_.on_line = [&](absl::string_view, absl::string_view line, bool) {
    if (!absl::StartsWith(line, "step 3/")) return;
    kill(worker_1, SIGSTOP);
    lost = MonotonicTime::Now();
  };
  MonotonicTime noticed = MonotonicTime::InfinitePast();
  options_.on_failure = [&](absl::string_view) { noticed = MonotonicTime::Now(); };
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_LT(lost, MonotonicTime::InfiniteFuture()) << DescribeFailure(*result);
  EXPECT_FALSE(absl::StartsWith(result->failure, "interrupted")) << result->failure;
  EXPECT_LT(noticed - lost, kTimeout + absl::Seconds(20)) << DescribeFailure(*result);
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrReplaceAll(absl::StrCat(c.topology, "_", c.link, "_", c.consistency),
                             {{":", ""}});
}

INSTANTIATE_TEST_SUITE_P(
    Processes, WallClockTest,
    ::testing::Values(Case{"ring", "grpc", "worker", "bsp"}, Case{"ring", "shm", "owner", "bsp"},
                      Case{"ring", "gloo", "worker", "bsp"}, Case{"ps", "tcp", "owner", "bsp"},
                      Case{"ps", "grpc", "owner", "ssp:1"}, Case{"ps", "shm", "owner", "bsp"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(Processes, LostRankTest,
                         ::testing::Values(Case{"ring", "tcp", "worker", "bsp"},
                                           Case{"ps", "grpc", "owner", "bsp"},
                                           Case{"ps", "grpc", "owner", "ssp:1"}),
                         CaseName);

// One that never comes is waited for in the store.
class MissingRankTest : public SteppingClockTest {};

TEST_F(MissingRankTest, AMissingRankIsNoticedInTimeByClocksThatAreSet) {
  for (const int step : {kForward, kBack}) {
    const LiveBy live_by(step);
    TestProgram worker({"worker/worker", "--topology=ring", "--link=grpc", "--model=mlp",
                        "--rank=0", "--world_size=2", "--master=127.0.0.1:0", "--steps=1",
                        "--timeout=2s"});
    EXPECT_FALSE(worker.Finish(absl::Seconds(40)).ok());
    EXPECT_THAT(worker.err(), ElementsAre(HasSubstr("rank 1 of 2 has not come")));
  }
}

// What the tests above rest on.
TEST_F(SteppingClockTest, ProgramsSeeTheClockBeSet) {
  for (const int step : {kForward, kBack}) {
    const LiveBy live_by(step);
    TestProgram shell(
        {"/bin/bash", "-c", "a=$EPOCHSECONDS; sleep 0.2; echo $((EPOCHSECONDS - a))"});
    EXPECT_TRUE(shell.Finish().ok());
    ASSERT_EQ(shell.out().size(), 1);
    int64_t seconds = 0;
    ASSERT_TRUE(absl::SimpleAtoi(shell.out()[0], &seconds)) << shell.out()[0];
    EXPECT_GE(std::abs(seconds), 3 * 3600);
    EXPECT_EQ(seconds > 0, step == kForward);
  }
}

}  // namespace
}  // namespace gradsync
