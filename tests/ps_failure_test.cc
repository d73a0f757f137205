// What workers and servers say when one of them is gone.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "gtest/gtest.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"

namespace gradsync {
namespace {

struct Link {
  std::string name;
  std::function<std::shared_ptr<StreamLink>()> make;
};

class PsFailureTest : public testing::TestWithParam<Link> {
 protected:
  static constexpr int kWorkers = 3;
  const Plan plan_ = UnevenPlan(kWorkers);
};

std::string Name(const testing::TestParamInfo<Link>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Links, PsFailureTest,
                         testing::Values(Link{"InProcess", [] { return NewInProcessLink(); }},
                                         Link{"Grpc", [] { return NewGrpcLink(); }},
                                         Link{"Tcp", [] { return NewTcpLink(); }}),
                         Name);

TEST_P(PsFailureTest, ALostServerIsNamedByIndexAndAddressOnEveryWorker) {
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    PsOptions base;
    base.update_site = site;
    PsGroup group(GetParam().make(), kWorkers, 2, base);
    const std::string name = absl::StrCat("server 1 (", group.address(1), ")");
    absl::BlockingCounter done(kWorkers);
    RunRanks(kWorkers, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = group.Worker(rank);
      ASSERT_TRUE(sync->Bind(plan_, Soon()).ok());
      ASSERT_EQ(RunStep(*sync, plan_, 1), absl::OkStatus());
      done.DecrementCount();
      if (rank == 0) {
        done.Wait();
        group.Kill(1);
      }
      const MonotonicTime began = MonotonicTime::Now();
      const absl::Status status = RunStep(*sync, plan_, 2);
      EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
      EXPECT_LT(MonotonicTime::Now() - began, absl::Seconds(10));
      EXPECT_EQ(sync->status(), status);
    });
  }
}

TEST_P(PsFailureTest, ALostServerIsNamedByIndexAndAddressWhereMemoryIsShared) {
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    PsOptions base;
    base.update_site = site;
    base.windows = true;
    base.connections = 1;
    PsGroup group(GetParam().make(), kWorkers, 2, base);
    const std::string name = absl::StrCat("server 1 (", group.address(1), ")");
    absl::BlockingCounter done(kWorkers);
    RunRanks(kWorkers, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = group.Worker(rank);
      ASSERT_TRUE(sync->Bind(plan_, Soon()).ok());
      ASSERT_EQ(RunStep(*sync, plan_, 1), absl::OkStatus());
      done.DecrementCount();
      if (rank == 0) {
        done.Wait();
        group.Kill(1);
      }
      // Workers fold small buckets without the server, until they hear of its end.
      absl::Status status;
      for (int64_t step = 2; status.ok(); ++step) status = RunStep(*sync, plan_, step);
      EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
    });
  }
}

// One that is lost without a word: kill_test.cc.
TEST_P(PsFailureTest, AWorkerThatFailsIsNamedWithItsReasonByServersAndOtherWorkers) {
  PsGroup group(GetParam().make(), kWorkers, 2, PsOptions());
  absl::BlockingCounter done(kWorkers);
  RunRanks(kWorkers, [&](int rank) {
    const auto sync = rank == 1 ? group.MuteWorker(rank) : group.Worker(rank);
    ASSERT_TRUE(sync->Bind(plan_, Soon()).ok());
    ASSERT_EQ(RunStep(*sync, plan_, 1), absl::OkStatus());
    done.DecrementCount();
    if (rank == 1) {
      done.Wait();
      sync->Abort(absl::DataLossError("a disk broke"));
      return;
    }
    const MonotonicTime began = MonotonicTime::Now();
    const absl::Status status = RunStep(*sync, plan_, 2);
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 (127.0.0.1): failed: a disk broke"))
        << status;
    EXPECT_LT(MonotonicTime::Now() - began, absl::Seconds(10));
  });
  for (int i : {0, 1}) {
    const absl::Status ended = group.server(i).Wait();
    EXPECT_TRUE(absl::IsAborted(ended)) << ended;
    EXPECT_TRUE(absl::StrContains(ended.message(), "rank 1 (127.0.0.1): failed: a disk broke"))
        << ended;
  }
}

TEST_P(PsFailureTest, AServerThatIsNotThereIsNamed) {
  PsGroup group(GetParam().make(), 1, 2, PsOptions());
  const Plan plan = UnevenPlan(1);
  group.Kill(1);
  const std::unique_ptr<GradientSync> sync = group.Worker(0);
  const absl::Status status = sync->Bind(plan, Deadline::In(absl::Seconds(1))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), group.address(1))) << status;
}

// The others' servers only saw streams end, and said that those workers were lost.
TEST_P(PsFailureTest, WorkersThatFailBeforeTheRunBeginsTellServersWhy) {
  PsGroup group(GetParam().make(), 2, 2, PsOptions());
  group.Kill(1);
  const std::string name = absl::StrCat("server 1 (", group.address(1), ")");
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    EXPECT_FALSE(sync->Bind(UnevenPlan(2), Deadline::In(absl::Seconds(2))).ok());
  });
  const absl::Status ended = group.server(0).Wait();
  EXPECT_TRUE(absl::StrContains(ended.message(), name)) << ended;
}

TEST_P(PsFailureTest, AWorkerThatDoesNotComeIsWaitedForUntilTheDeadline) {
  PsGroup group(GetParam().make(), 2, 1, PsOptions());
  const std::unique_ptr<GradientSync> sync = group.Worker(0);
  const absl::Status status =
      sync->Bind(UnevenPlan(2), Deadline::In(absl::Milliseconds(500))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST_P(PsFailureTest, ServersEndWellAfterEveryWorkerSaidGoodbye) {
  PsGroup group(GetParam().make(), kWorkers, 2, PsOptions());
  RunRanks(kWorkers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    ASSERT_TRUE(sync->Bind(plan_, Soon()).ok());
    ASSERT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    for (int64_t step : {1, 2}) ASSERT_EQ(RunStep(*sync, plan_, step), absl::OkStatus());
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
    EXPECT_TRUE(absl::IsCancelled(RunStep(*sync, plan_, 3)));
  });
  int64_t shards = 0;
  for (int i : {0, 1}) {
    EXPECT_EQ(group.server(i).Wait(), absl::OkStatus());
    const ServerStats stats = group.server(i).stats();
    shards += stats.shard_bytes;
    EXPECT_EQ(stats.steps, 2);
    EXPECT_EQ(stats.step_rx_bytes, 2 * kWorkers * stats.shard_bytes);
    EXPECT_EQ(stats.step_tx_bytes, 2 * kWorkers * stats.shard_bytes);
    EXPECT_EQ(stats.rx_bytes - stats.step_rx_bytes, stats.shard_bytes);
    EXPECT_EQ(stats.tx_bytes - stats.step_tx_bytes, (kWorkers - 1) * stats.shard_bytes);
  }
  EXPECT_EQ(shards, plan_.total_bytes());
}

}  // namespace
}  // namespace gradsync
