// Two ranks on one GPU, as processes: over the real NCCL, and over memory of the GPU that they
// share.

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/group/grpc_store.h"
#include "core/links/in_process_stream.h"
#include "gtest/gtest.h"
#include "tests/gpu_rank.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/real_gpu.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

// Kernels of two processes take turns on the GPU, so every collective takes milliseconds.
constexpr absl::Duration kSuiteLimit = absl::Minutes(5);
constexpr absl::Duration kLimit = absl::Minutes(2);

class TwoProcessesTest : public RealGpuTest {
 protected:
  struct Ended {
    ExitStatus status;
    std::vector<std::string> out;
  };

  // Starts both ranks and waits for their ends.
  std::vector<Ended> RunBoth(absl::string_view task, absl::Duration limit) {
    std::vector<Ended> ended(kGpuRanks);
    // A thread each, so that no rank waits for somebody to read what it prints.
    RunRanks(kGpuRanks, [&](int rank) {
      TestProgram program(GpuRankCommand(task, rank, store_->port()));
      ended[rank].status = program.Finish(limit);
      ended[rank].out = program.out();
      EXPECT_TRUE(ended[rank].status.ok())
          << "rank " << rank << ": " << ended[rank].status.ToString() << "\n"
          << absl::StrJoin(ended[rank].out, "\n") << "\n"
          << absl::StrJoin(program.err(), "\n");
    });
    return ended;
  }

  const std::unique_ptr<GrpcStoreServer> store_ =
      GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials()).value();
};

// That those that ran passed is seen from the exit code.
void ExpectThatManyRan(const std::vector<std::string>& out) {
  const auto passed = std::count_if(out.begin(), out.end(), [](const std::string& line) {
    return absl::StrContains(line, "[       OK ]");
  });
  EXPECT_GE(passed, 20);
}

TEST_F(TwoProcessesTest, PassTheConformanceSuite) {
  for (const Ended& rank : RunBoth(kRunSuite, kSuiteLimit)) ExpectThatManyRan(rank.out);
}

TEST_F(TwoProcessesTest, PassTheConformanceSuiteWithServers) {
  for (const Ended& rank : RunBoth(kRunServersSuite, kSuiteLimit)) ExpectThatManyRan(rank.out);
}

std::string HashOfParameterServers(UpdateSite site, int rank, const PsGroup& group) {
  const std::unique_ptr<GradientSync> sync = group.Worker(rank);
  EXPECT_EQ(sync->update_site(), site);
  const absl::StatusOr<std::string> hash = HashOfTraining(*sync, rank);
  EXPECT_TRUE(hash.ok()) << hash.status();
  return hash.value_or("");
}

TEST_F(TwoProcessesTest, GiveTheBitsOfParameterServersOnTheHost) {
  for (const auto& [site, task] : {std::make_pair(UpdateSite::kWorker, kHashWorker),
                                   std::make_pair(UpdateSite::kOwner, kHashOwner),
                                   std::make_pair(UpdateSite::kWorker, kHashServersWorker),
                                   std::make_pair(UpdateSite::kOwner, kHashServersOwner)}) {
    PsOptions options;
    options.update_site = site;
    const PsGroup group(NewInProcessLink(), kGpuRanks, /*servers=*/2, options);
    std::vector<std::string> expected(kGpuRanks);
    RunRanks(kGpuRanks, [&, site = site](int rank) {
      expected[rank] = HashOfParameterServers(site, rank, group);
    });
    EXPECT_EQ(expected[0], expected[1]);
    for (const Ended& rank : RunBoth(task, kLimit)) {
      const std::string line = absl::StrCat("hash ", expected[0]);
      EXPECT_NE(std::find(rank.out.begin(), rank.out.end(), line), rank.out.end())
          << task << ": expected " << line << "\n"
          << absl::StrJoin(rank.out, "\n");
    }
  }
}

TEST_F(TwoProcessesTest, OneThatIsKilledIsNoticedByTheOther) {
  std::vector<std::unique_ptr<TestProgram>> ranks;
  for (int rank = 0; rank < kGpuRanks; ++rank) {
    ranks.push_back(
        std::make_unique<TestProgram>(GpuRankCommand(kStepForever, rank, store_->port())));
  }
  for (const auto& rank : ranks) ASSERT_EQ(rank->AwaitLine("stepping", kLimit), "stepping");
  ranks[1]->Kill(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  // By NCCL, whose connection breaks, or by the watchdog, after 10 s.
  const std::string why = ranks[0]->AwaitLine("failed ", kLimit);
  EXPECT_TRUE(absl::StrContains(why, "UNAVAILABLE") || absl::StrContains(why, "DEADLINE_EXCEEDED"))
      << why;
  EXPECT_TRUE(absl::StrContains(why, "rank 1 does not answer")) << why;
  EXPECT_FALSE(absl::StrContains(why, "ncclCommAbort")) << "an abort that hangs: " << why;
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(30)) << why;
  EXPECT_TRUE(ranks[0]->Finish(kLimit).ok());
}

// The same over memory of the GPU that the two share.
TEST_F(TwoProcessesTest, PassTheConformanceSuiteOverSharedMemoryOfTheGpu) {
  for (const Ended& rank : RunBoth(kRunIpcSuite, kSuiteLimit)) {
    const auto passed = std::count_if(
        rank.out.begin(), rank.out.end(),
        [](const std::string& line) { return absl::StrContains(line, "[       OK ]"); });
    EXPECT_GE(passed, 30);  // they did run
  }
}

TEST_F(TwoProcessesTest, GiveTheBitsOfTheHostOverSharedMemoryOfTheGpuWhoeverFolds) {
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    PsOptions options;
    options.update_site = site;
    const PsGroup group(NewInProcessLink(), kGpuRanks, /*servers=*/2, options);
    std::vector<std::string> expected(kGpuRanks);
    RunRanks(kGpuRanks,
             [&](int rank) { expected[rank] = HashOfParameterServers(site, rank, group); });
    const std::vector<std::string> tasks =
        site == UpdateSite::kOwner
            ? std::vector<std::string>{kHashIpcRingOwner, kHashIpcServersOwner}
            : std::vector<std::string>{kHashIpcRing, kHashIpcServer, kHashIpcServers};
    for (const std::string& task : tasks) {
      for (const Ended& rank : RunBoth(task, kLimit)) {
        const std::string line = absl::StrCat("hash ", expected[0]);
        EXPECT_NE(std::find(rank.out.begin(), rank.out.end(), line), rank.out.end())
            << task << ": expected " << line << "\n"
            << absl::StrJoin(rank.out, "\n");
      }
    }
  }
}

// Stops or kills rank 1 in the middle of steps; what rank 0 then says.
class SharedMemoryOfTheGpuTest : public TwoProcessesTest {
 protected:
  std::string FailureAfter(int signal, absl::Duration limit) {
    for (int rank = 0; rank < kGpuRanks; ++rank) {
      ranks_.push_back(
          std::make_unique<TestProgram>(GpuRankCommand(kStepForeverOverIpc, rank, store_->port())));
    }
    for (const auto& rank : ranks_) EXPECT_EQ(rank->AwaitLine("stepping", kLimit), "stepping");
    ranks_[1]->Kill(signal);
    const MonotonicTime then = MonotonicTime::Now();
    const std::string why = ranks_[0]->AwaitLine("failed ", kLimit);
    EXPECT_LT(MonotonicTime::Now() - then, limit) << why;
    EXPECT_TRUE(ranks_[0]->Finish(kLimit).ok());
    return why;
  }

  std::vector<std::unique_ptr<TestProgram>> ranks_;
};

TEST_F(SharedMemoryOfTheGpuTest, AKilledProcessIsNamedAtOnceAndHoldsUpNobody) {
  const std::string why = FailureAfter(SIGKILL, absl::Seconds(10));
  EXPECT_TRUE(absl::StrContains(why, "UNAVAILABLE")) << why;
  EXPECT_TRUE(absl::StrContains(why, "rank 1 (process")) << why;
  EXPECT_TRUE(absl::StrContains(why, "is gone")) << why;
  EXPECT_FALSE(absl::StrContains(why, "left to a thread")) << why;
}

TEST_F(SharedMemoryOfTheGpuTest, AStoppedProcessIsNamedAfterTheTimeout) {
  const std::string why = FailureAfter(SIGSTOP, absl::Seconds(30));
  EXPECT_TRUE(absl::StrContains(why, "DEADLINE_EXCEEDED")) << why;
  EXPECT_TRUE(absl::StrContains(why, "rank 1")) << why;
  ranks_[1]->Kill(SIGKILL);
}

}  // namespace
}  // namespace gradsync
