#include "benchmarks/comparison/server_cpu.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(CpuSecondsOfTest, IsOfAnyProcessAndOfNoneThatIsGone) {
  const absl::optional<double> before = CpuSecondsOf(getpid());
  ASSERT_TRUE(before.has_value());
  absl::optional<double> after = before;
  while (after.has_value() && *after < *before + 0.001) after = CpuSecondsOf(getpid());
  EXPECT_TRUE(after.has_value());
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(CpuSecondsOf(child).has_value());
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(CpuSecondsOf(child).has_value());
}

std::vector<proto::ServerMetrics> Servers(int count) {
  std::vector<proto::ServerMetrics> servers(count);
  for (proto::ServerMetrics& server : servers) {
    server.set_cpu_seconds(100);
    server.set_steps(4);
  }
  return servers;
}

// Start and warm-up counted, which workers leave out.
TEST(ServerCpuTest, ServersCountAsWorkersDoFromTheEndOfTheWarmUp) {
  double now = 0;
  ServerCpu cpu(2, [&now](int pid) { return pid * now; });
  cpu.Started("server 0", 10);
  cpu.Started("server 1", 20);
  cpu.Started("worker 0", 30);
  for (int step = 1; step <= 4; ++step) {
    now = step * step;
    cpu.Step(step, 4);
  }
  now = 1000;
  std::vector<proto::ServerMetrics> servers = Servers(2);
  cpu.Replace({proto::WorkerMetrics()}, &servers);
  EXPECT_DOUBLE_EQ(servers[0].cpu_seconds(), 10 * (16 - 4));
  EXPECT_DOUBLE_EQ(servers[1].cpu_seconds(), 20 * (16 - 4));
  EXPECT_EQ(servers[1].steps(), 2);
}

TEST(ServerCpuTest, WhereNothingIsMeasuredItIsTheWholeLife) {
  for (bool gone : {false, true}) {
    ServerCpu cpu(0, [gone](int) { return gone ? absl::nullopt : absl::optional<double>(5); });
    cpu.Started("server 0", 10);
    for (int step = 1; step <= (gone ? 4 : 1); ++step) cpu.Step(step, gone ? 4 : 1);
    std::vector<proto::ServerMetrics> servers = Servers(1);
    cpu.Replace({proto::WorkerMetrics()}, &servers);
    EXPECT_EQ(servers[0].cpu_seconds(), 100) << gone;
    EXPECT_EQ(servers[0].steps(), 4) << gone;
  }
}

TEST(ServerCpuTest, WorkersThatDoNotWaitDoDifferentNumbersOfStepsMeanwhile) {
  std::vector<proto::WorkerMetrics> workers(2);
  for (proto::WorkerMetrics& worker : workers) {
    worker.set_topology("ps");
    worker.set_update("owner");
    worker.set_consistency("asp");
  }
  for (int step = 1; step <= 3; ++step) workers[0].add_step_end_seconds(step);
  for (int step = 1; step <= 8; ++step) workers[1].add_step_end_seconds(0.5 * step);
  double now = 0;
  ServerCpu cpu(1, [&now](int) { return now; });
  cpu.Started("server 0", 10);
  for (int step = 1; step <= 3; ++step) {
    now = step;
    cpu.Step(step, 3);
  }
  std::vector<proto::ServerMetrics> servers = Servers(1);
  cpu.Replace(workers, &servers);
  EXPECT_EQ(servers[0].cpu_seconds(), 2);
  EXPECT_DOUBLE_EQ(servers[0].steps(), (2 + 4) / 2.0);
}

}  // namespace
}  // namespace gradsync
