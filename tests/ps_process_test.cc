// //ps_server as a process: its exit codes and words, and what its death does to workers.

#include <poll.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "base/credentials.h"
#include "gtest/gtest.h"
#include "links/grpc_store.h"
#include "links/grpc_stream.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tools/runfiles.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

std::string* server_binary = new std::string;

class ServerProcess {
 public:
  explicit ServerProcess(const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {*server_binary};
    argv.insert(argv.end(), flags.begin(), flags.end());
    process_ = *Subprocess::Start(argv, [this](absl::string_view line, bool is_stderr) {
      (is_stderr ? errors_ : lines_).emplace_back(line);
    });
  }

  // Where it listens; empty if it ended before it did.
  std::string AwaitAddress() {
    Await([this] { return !lines_.empty(); });
    return lines_.empty() ? "" : std::string(absl::StripPrefix(lines_[0], "listening on "));
  }

  int AwaitExitCode() {
    Await([] { return false; });
    return process_->exit_status().has_value() ? process_->exit_status()->shell_code() : -1;
  }

  void Kill(int signal) { process_->Kill(signal); }

  const std::vector<std::string>& lines() const { return lines_; }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  template <typename Done>
  void Await(Done done) {
    const absl::Time deadline = Soon();
    process_->Poll();
    while (!done() && !process_->exit_status().has_value() && absl::Now() < deadline) {
      pollfd fds[] = {{process_->stdout_fd(), POLLIN, 0}, {process_->stderr_fd(), POLLIN, 0}};
      poll(fds, 2, 100);
      process_->Poll();
    }
  }

  std::vector<std::string> lines_;
  std::vector<std::string> errors_;
  std::unique_ptr<Subprocess> process_;
};

void ExpectRefused(const std::vector<std::string>& flags, const std::string& text) {
  ServerProcess server(flags);
  EXPECT_EQ(server.AwaitExitCode(), 2);
  ASSERT_EQ(server.errors().size(), 1u);
  EXPECT_TRUE(absl::StrContains(server.errors()[0], text)) << server.errors()[0];
}

TEST(PsServerProcess, BadFlagsAreOneLineAndExitCodeTwo) {
  ExpectRefused({"--listn=x"}, "--listn");
  ExpectRefused({"--listen=nowhere"}, "\"nowhere\"");
  ExpectRefused({"--timeout=0s"}, "--timeout");
  ExpectRefused({"please"}, "\"please\"");
  ExpectRefused({"--master=127.0.0.1:1", "--timeout=200ms"}, "--master=127.0.0.1:1");
}

TEST(PsServerProcess, APortThatIsTakenIsNamed) {
  ServerProcess first({});
  const std::string address = first.AwaitAddress();
  ExpectRefused({"--listen=" + address}, address);
}

TEST(PsServerProcess, ItEndsWithAnErrorWhenNobodyComes) {
  ServerProcess server({"--timeout=200ms"});
  EXPECT_EQ(server.AwaitExitCode(), 1);
  ASSERT_EQ(server.errors().size(), 1u);
  EXPECT_TRUE(absl::StrContains(server.errors()[0], "nobody said hello")) << server.errors()[0];
}

TEST(PsServerProcess, SigtermEndsItWithALine) {
  ServerProcess server({});
  server.AwaitAddress();
  server.Kill(SIGTERM);
  EXPECT_EQ(server.AwaitExitCode(), 1);
  ASSERT_EQ(server.errors().size(), 1u);
  EXPECT_TRUE(absl::StrContains(server.errors()[0], "SIGTERM")) << server.errors()[0];
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(PsServerProcess, ServersRegisterServeCountAndEndWell) {
  constexpr int kWorkers = 2;
  const Plan plan = UnevenPlan(kWorkers);
  const auto store = *GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials());
  const std::string master = absl::StrCat("127.0.0.1:", store->port());
  const std::string folder = testing::TempDir();
  std::vector<std::unique_ptr<ServerProcess>> servers;
  for (int i : {0, 1}) {
    servers.push_back(std::make_unique<ServerProcess>(std::vector<std::string>{
        "--master=" + master, "--run_id=test", absl::StrCat("--port_file=", folder, "/port", i),
        absl::StrCat("--metrics_json=", folder, "/metrics", i)}));
  }
  const auto client = *ConnectStore(master, InsecureCredentials(), Soon());
  std::vector<std::string> registered;
  for (int i : {0, 1}) {
    registered.push_back(*client->Get(absl::StrCat("test/0/server/", i), Soon()));
  }
  for (int i : {0, 1}) {
    const std::string address = servers[i]->AwaitAddress();
    EXPECT_TRUE(registered[0] == address || registered[1] == address);
    EXPECT_EQ(ReadAll(absl::StrCat(folder, "/port", i)), address + "\n");
  }
  PsOptions base;
  base.update_site = UpdateSite::kOwner;
  PsGroup group(NewGrpcLink(), kWorkers, registered, base);
  RunRanks(kWorkers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    ASSERT_TRUE(sync->Bind(plan, Soon()).ok());
    for (int64_t step : {1, 2, 3}) ASSERT_EQ(RunStep(*sync, plan, step), absl::OkStatus());
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
  for (int i : {0, 1}) {
    EXPECT_EQ(servers[i]->AwaitExitCode(), 0);
    ASSERT_EQ(servers[i]->lines().size(), 2u);
    EXPECT_TRUE(absl::StrContains(servers[i]->lines()[1], "served 3 steps to 2 workers"));
    const std::string metrics = ReadAll(absl::StrCat(folder, "/metrics", i));
    EXPECT_TRUE(absl::StrContains(metrics, "\"steps\": 3")) << metrics;
    EXPECT_TRUE(absl::StrContains(metrics, registered[0]) ||
                absl::StrContains(metrics, registered[1]));
  }
}

TEST(PsServerProcess, AKilledServerIsNamedByAllAndTheOtherServerEnds) {
  constexpr int kWorkers = 2;
  const Plan plan = UnevenPlan(kWorkers);
  ServerProcess first({}), second({});
  const std::vector<std::string> addresses = {first.AwaitAddress(), second.AwaitAddress()};
  PsGroup group(NewGrpcLink(), kWorkers, addresses, PsOptions());
  absl::BlockingCounter done(kWorkers);
  RunRanks(kWorkers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    ASSERT_TRUE(sync->Bind(plan, Soon()).ok());
    ASSERT_EQ(RunStep(*sync, plan, 1), absl::OkStatus());
    done.DecrementCount();
    if (rank == 0) {
      done.Wait();
      second.Kill(SIGKILL);
    }
    const absl::Time began = absl::Now();
    const absl::Status status = RunStep(*sync, plan, 2);
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("server 1 (", addresses[1], ")")))
        << status;
    EXPECT_LT(absl::Now() - began, absl::Seconds(10));
  });
  EXPECT_EQ(second.AwaitExitCode(), 128 + SIGKILL);
  EXPECT_EQ(first.AwaitExitCode(), 1);
  ASSERT_EQ(first.errors().size(), 1u);
  EXPECT_TRUE(absl::StrContains(first.errors()[0], "(127.0.0.1) lost")) << first.errors()[0];
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto binary = gradsync::FindRunfile(argv[0], "ps_server/ps_server");
  if (!binary.ok()) return 1;
  *gradsync::server_binary = *binary;
  return RUN_ALL_TESTS();
}
