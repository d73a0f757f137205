// Whichever process of a job dies, the whole job ends soon, and says who died.

#include <csignal>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr absl::Duration kTimeToNotice = absl::Seconds(15);

struct Case {
  std::string topology;
  std::string link;
  std::string update;
  int workers;
  int servers;
  std::string victim;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.topology << " over " << c.link << " " << c.update << " " << c.victim;
}

class KillTest : public ::testing::TestWithParam<Case> {
 protected:
  KillTest() {
    const Case& c = GetParam();
    options_.worker_binary = "worker/worker";
    options_.server_binary = "ps_server/ps_server";
    options_.workers = c.workers;
    options_.servers = c.servers;
    options_.worker_flags = {"--topology=" + c.topology,
                             "--link=" + c.link,
                             "--update=" + c.update,
                             "--model=mlp",
                             "--batch_size=4",
                             "--steps=100000000",
                             "--threads=1",
                             "--log_every=100000000",
                             "--timeout=60s"};
    options_.on_start = [this](absl::string_view process, int pid) {
      pids_[std::string(process)] = pid;
    };
    options_.on_line = [this](absl::string_view process, absl::string_view line, bool is_stderr) {
      HandleLine(std::string(process), line, is_stderr);
    };
  }

  void HandleLine(const std::string& process, absl::string_view line, bool is_stderr) {
    if (is_stderr) errors_[process].push_back(std::string(line));
    absl::string_view address = line;
    if (absl::ConsumePrefix(&address, "listening on ")) addresses_[process] = std::string(address);
    if (process == "worker 0" && absl::StartsWith(line, "step 1/") && !killed_) {
      killed_ = true;
      killed_at_ = MonotonicTime::Now();
      kill(pids_.at(GetParam().victim), SIGKILL);
    }
  }

  // "rank 1", "server 0 \\(127.0.0.1:4000\\)", as a regular expression.
  std::string NameOfVictim() {
    absl::string_view rank = GetParam().victim;
    if (absl::ConsumePrefix(&rank, "worker ")) return absl::StrCat("rank ", rank, "[^0-9]");
    return absl::StrCat(GetParam().victim, " \\(", addresses_[GetParam().victim], "\\)");
  }

  // Right behind the code.
  void ExpectThatItNamesTheVictim(const std::string& survivor) {
    if (survivor == GetParam().victim) return;
    EXPECT_THAT(errors_[survivor], ::testing::ElementsAre(::testing::ContainsRegex(
                                       absl::StrCat("^[a-z_]*: [A-Z_]*: ", NameOfVictim()))))
        << "on " << survivor;
  }

  LocalJobOptions options_;
  std::map<std::string, int> pids_;
  std::map<std::string, std::vector<std::string>> errors_;  // lines of stderr
  std::map<std::string, std::string> addresses_;            // of servers
  bool killed_ = false;
  MonotonicTime killed_at_;
};

TEST_P(KillTest, TheJobEndsAndEverySurvivorNamesTheDeadFirst) {
  const auto result = RunLocalJob(options_);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(killed_) << result->failure << ": " << result->failure_detail;
  EXPECT_LT(MonotonicTime::Now() - killed_at_, kTimeToNotice);
  EXPECT_EQ(result->exit_code, 128 + SIGKILL);
  EXPECT_THAT(result->failure, ::testing::StartsWith(absl::StrCat(
                                   GetParam().victim, " (pid ", pids_[GetParam().victim],
                                   "): killed by signal 9 (SIGKILL), ")));
  for (int rank = 0; rank < options_.workers; ++rank) {
    const std::string survivor = absl::StrCat("worker ", rank);
    ExpectThatItNamesTheVictim(survivor);
  }
  for (int server = 0; server < options_.servers; ++server) {
    ExpectThatItNamesTheVictim(absl::StrCat("server ", server));
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const std::string update : {"worker", "owner"}) {
    const std::string frames = update == "worker" ? "grpc" : "tcp";
    for (const char* victim : {"worker 0", "worker 1", "server 0", "server 1"}) {
      cases.push_back({"ps", frames, update, 2, 2, victim});
      cases.push_back({"ps", "shm", update, 2, 2, victim});
    }
    for (const char* victim : {"worker 0", "worker 1", "worker 2"}) {
      for (const char* topology : {"ring", "ps"}) {  // workers are the servers
        cases.push_back({topology, frames, update, 3, 0, victim});
        cases.push_back({topology, "shm", update, 3, 0, victim});
      }
    }
  }
  for (const char* victim : {"worker 0", "worker 1", "worker 2"}) {
    cases.push_back({"ring", "gloo", "worker", 3, 0, victim});
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrReplaceAll(
      absl::StrCat(c.topology, "_", c.link, "_", c.update, "_", c.servers, "servers_", c.victim),
      {{" ", ""}});
}

INSTANTIATE_TEST_SUITE_P(Processes, KillTest, ::testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace gradsync
