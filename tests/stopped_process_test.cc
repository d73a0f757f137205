// Whichever process of a job is stopped, as by SIGSTOP or a host that freezes, all others end
// within the failure timeout and a moment, and say who it was. A job that is stopped as a whole
// goes on when it is resumed.

#include <algorithm>
#include <csignal>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr absl::Duration kFailureTimeout = absl::Seconds(3);

struct Case {
  std::string topology;
  std::string link;
  std::string update;
  int workers;
  int servers;
  std::string victim;
  std::string consistency = "bsp";
  std::vector<std::string> flags = {};  // what is not as in the other cases
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.topology << " over " << c.link << " " << c.update << " " << c.victim;
}

class StoppedProcessTest : public ::testing::TestWithParam<Case> {
 protected:
  StoppedProcessTest() {
    const Case& c = GetParam();
    options_.worker_binary = "worker/worker";
    options_.server_binary = "ps_server/ps_server";
    options_.workers = c.workers;
    options_.servers = c.servers;
    const std::string timeout =
        absl::StrCat("--failure_timeout=", absl::FormatDuration(kFailureTimeout));
    options_.server_flags = {timeout};
    options_.worker_flags = {timeout,
                             "--topology=" + c.topology,
                             "--link=" + c.link,
                             "--update=" + c.update,
                             "--consistency=" + c.consistency,
                             "--model=mlp",
                             "--batch_size=4",
                             "--steps=100000000",
                             "--threads=1",
                             "--log_every=200"};
    options_.settle = absl::Seconds(3);
    options_.grace = absl::Milliseconds(100);  // nobody who is stopped hears SIGTERM
    options_.on_start = [this](absl::string_view process, int pid) {
      pids_[std::string(process)] = pid;
    };
    options_.on_line = [this](absl::string_view process, absl::string_view line, bool is_stderr) {
      HandleLine(std::string(process), line, is_stderr);
    };
  }

  void AddFlags(const std::vector<std::string>& flags) {
    options_.worker_flags.insert(options_.worker_flags.end(), flags.begin(), flags.end());
  }

  void HandleLine(const std::string& process, absl::string_view line, bool is_stderr) {
    if (is_stderr) {
      errors_[process].push_back(std::string(line));
      last_error_at_ = MonotonicTime::Now();
    }
    absl::string_view address = line;
    if (absl::ConsumePrefix(&address, "listening on ")) addresses_[process] = std::string(address);
    if (process == "worker 0" && absl::StartsWith(line, LineBeforeStop()) && !stopped_) {
      stopped_ = true;
      stopped_at_ = MonotonicTime::Now();
      kill(pids_.at(GetParam().victim), SIGSTOP);
    }
  }

  // A server hears from its first worker where the store is. Where that one is the only one, nobody
  // tells it of a stop that comes before it is a member there.
  static std::string LineBeforeStop() { return GetParam().workers == 1 ? "step 200/" : "step 1/"; }

  // "rank 1", "server 0 (127.0.0.1:4000)".
  std::string NameOfVictim() {
    absl::string_view rank = GetParam().victim;
    if (absl::ConsumePrefix(&rank, "worker ")) return absl::StrCat("rank ", rank);
    return absl::StrCat(GetParam().victim, " (", addresses_[GetParam().victim], ")");
  }

  LocalJobOptions options_;
  std::map<std::string, int> pids_;
  std::map<std::string, std::vector<std::string>> errors_;  // lines of stderr
  std::map<std::string, std::string> addresses_;            // of servers
  bool stopped_ = false;
  MonotonicTime stopped_at_;
  MonotonicTime last_error_at_;
};

// What a worker says while it waits for one that is stopped.
bool IsStall(const std::string& line) {
  return absl::StartsWith(line, "worker: waiting for bucket ") && absl::EndsWith(line, " so far");
}

TEST_P(StoppedProcessTest, AllOthersEndSoonAndNameIt) {
  AddFlags(GetParam().flags);
  const auto result = RunLocalJob(options_);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(stopped_) << result->failure << ": " << result->failure_detail;
  // Whoever depends on the victim waits for it for two seconds before that one is lost.
  int stalls = 0;
  for (const auto& [process, lines] : errors_) {
    stalls += static_cast<int>(std::count_if(lines.begin(), lines.end(), IsStall));
  }
  const bool others_depend = GetParam().consistency == "bsp" && GetParam().workers > 1;
  EXPECT_EQ(stalls > 0, others_depend);
  for (const auto& [process, pid] : pids_) {
    if (process == GetParam().victim) continue;
    // After the code, the message begins with the culprit.
    std::vector<std::string>& lines = errors_[process];
    lines.erase(std::remove_if(lines.begin(), lines.end(), IsStall), lines.end());
    EXPECT_THAT(lines, ::testing::ElementsAre(::testing::ContainsRegex(absl::StrCat(
                           "^[a-z_]*: [A-Z_]*: ",
                           absl::StrReplaceAll(NameOfVictim(), {{"(", "\\("}, {")", "\\)"}}),
                           " lost: no sign of life for 3s"))))
        << "on " << process;
  }
  EXPECT_LT(last_error_at_ - stopped_at_, kFailureTimeout + absl::Seconds(2));
}

// So a step waits for them in backward.
const std::vector<std::string>& MoreBucketsThanRoom() {
  static const auto& flags = *new std::vector<std::string>(
      {"--zero=2", "--model=gpt", "--gpt_layers=2", "--gpt_width=16", "--gpt_heads=2",
       "--gpt_context=16", "--bucket_bytes=4KiB", "--first_bucket_bytes=4KiB"});
  return flags;
}

std::vector<Case> AllCases() {
  return {
      {"ps", "grpc", "worker", 3, 2, "worker 0"},
      {"ps", "tcp", "owner", 2, 2, "server 1"},
      {"ps", "grpc", "owner", 3, 1, "worker 2", "asp"},
      {"ps", "grpc", "owner", 1, 1, "worker 0"},
      {"ps", "shm", "owner", 2, 2, "worker 1"},
      {"ps", "tcp", "owner", 3, 0, "worker 1"},  // workers are the servers
      {"ring", "grpc", "worker", 3, 0, "worker 1"},
      {"ring", "tcp", "owner", 2, 0, "worker 1", "bsp", MoreBucketsThanRoom()},
      {"ring", "shm", "worker", 3, 0, "worker 0"},
      {"ring", "gloo", "worker", 3, 0, "worker 1"},
  };
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrReplaceAll(
      absl::StrCat(c.topology, "_", c.link, "_", c.update, "_", c.consistency, "_", c.workers,
                   "workers_", c.servers, "servers_", c.victim),
      {{" ", ""}});
}

INSTANTIATE_TEST_SUITE_P(Processes, StoppedProcessTest, ::testing::ValuesIn(AllCases()), CaseName);

// Suspends a job for a time. Worker 0 is stopped after all others, when it waits for them, and
// resumed before them, so whatever its deadlines are, they have passed before anything can come.
class Suspension {
 public:
  ~Suspension() {
    if (thread_.joinable()) thread_.join();
  }

  void Begin(absl::Duration pause, std::map<std::string, int> pids) {
    const int first = pids.at("worker 0");
    pids.erase("worker 0");
    for (const auto& [process, pid] : pids) kill(pid, SIGSTOP);
    thread_ = std::thread([pause, first, others = std::move(pids)] {
      Sleep(kUntilItWaits);
      kill(first, SIGSTOP);
      Sleep(pause);
      kill(first, SIGCONT);
      Sleep(kUntilItLooks);
      for (const auto& [process, pid] : others) kill(pid, SIGCONT);
    });
  }

 private:
  static constexpr absl::Duration kUntilItWaits = absl::Milliseconds(500);
  static constexpr absl::Duration kUntilItLooks = absl::Milliseconds(100);

  static void Sleep(absl::Duration time) {
    Mutex mutex;
    CondVar never;
    const Deadline deadline = Deadline::In(time);
    MutexLock lock(&mutex);
    while (!never.WaitWithDeadline(&mutex, deadline)) {
    }
  }

  std::thread thread_;
};

class SuspendedJobTest : public StoppedProcessTest {};

// For longer than any of its timeouts.
TEST_P(SuspendedJobTest, GoesOnWhenItIsResumed) {
  constexpr absl::Duration kPause = absl::Seconds(17);
  Suspension suspension;
  MonotonicTime stopped_at;
  AddFlags({"--steps=3000", "--timeout=15s"});  // a busy machine takes seconds to start a job
  AddFlags(GetParam().flags);
  options_.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    if (is_stderr) ADD_FAILURE() << process << ": " << line;
    if (process != "worker 0" || !absl::StartsWith(line, "step 1/")) return;
    stopped_at = MonotonicTime::Now();
    suspension.Begin(kPause, pids_);
  };
  const auto result = RunLocalJob(options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
  EXPECT_GT(MonotonicTime::Now() - stopped_at, kPause);
}

const std::vector<std::string>& SlicedModel() {
  static const auto& flags = *new std::vector<std::string>(
      {"--mesh=tensor=2", "--model=gpt", "--gpt_layers=1", "--gpt_width=16", "--gpt_heads=2",
       "--gpt_context=16", "--steps=500"});
  return flags;
}

std::vector<std::string> With(std::vector<std::string> flags, const std::string& flag) {
  flags.push_back(flag);
  return flags;
}

std::vector<Case> SuspendedCases() {
  return {
      {"ps", "grpc", "owner", 2, 1, "all"},
      {"ring", "tcp", "owner", 2, 0, "all"},
      {"ring", "shm", "owner", 2, 0, "all"},
      {"ring", "auto", "worker", 2, 0, "stages", "bsp", {"--mesh=pipeline=2", "--micro_batches=2"}},
      {"ring", "auto", "worker", 2, 0, "slices_shm", "bsp",
       With(SlicedModel(), "--tensor_link=shm")},
      {"ring", "auto", "worker", 2, 0, "slices_grpc", "bsp",
       With(SlicedModel(), "--tensor_link=grpc")},
  };
}

INSTANTIATE_TEST_SUITE_P(Processes, SuspendedJobTest, ::testing::ValuesIn(SuspendedCases()),
                         CaseName);

}  // namespace
}  // namespace gradsync
