// A server under ssp and asp, and workers that say exactly what they are told to.

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/base/fault_injection.h"
#include "core/base/monotonic_time.h"
#include "core/links/in_process_stream.h"
#include "core/plan/plan_proto.h"
#include "core/plan/shard_map.h"
#include "gtest/gtest.h"
#include "ps_server/raw_worker.h"
#include "ps_server/server.h"

namespace gradsync {
namespace {

using Kind = proto::FrameHeader;

// Three chunks of 16 elements, of which the last is cut short.
Plan ThreeChunks() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {40}, {1}, 0}}, {{0}}, optimizer, 2, /*chunk_bytes=*/64);
}

class AsyncServerTest : public testing::Test {
 protected:
  explicit AsyncServerTest(absl::Duration timeout = absl::Seconds(30)) {
    ServerOptions options;
    options.timeout = timeout;
    options.link = link_;
    options.run_id = "test";
    server_ = *ParameterServer::Start(options);
  }

  proto::Hello HelloFor(int rank, const std::string& consistency) const {
    proto::Hello hello = RawStream::HelloFor(plan_, rank);
    hello.mutable_terms()->set_update_site(proto::OWNER);
    hello.mutable_terms()->set_consistency(consistency);
    hello.mutable_terms()->set_credit(8);
    return hello;
  }

  void Begin(const std::string& consistency) {
    for (int rank : {0, 1}) {
      workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
      workers_[rank]->SayHello(HelloFor(rank, consistency));
    }
    for (int rank : {0, 1}) {
      ASSERT_TRUE(workers_[rank]->Await(Kind::HELLO).has_value());
      orders_.push_back(PushOrder(plan_, *ShardMap::Create(plan_, {1}), 0, rank));
    }
  }

  void PushStep(int rank, int64_t number) {
    for (ChunkId id : orders_[rank]) Push(rank, id, number);
  }

  void Push(int rank, ChunkId id, int64_t number, double max_norm = 0) {
    StepOptions step;
    step.step = number;
    step.lr = 0.1;
    step.max_norm = max_norm;
    workers_[rank]->Push(id, step, 4 * plan_.buckets()[0].layout.range(id.slot).size());
  }

  // The answers to a step; their largest staleness.
  int64_t AwaitStep(int rank, int64_t number) {
    int64_t staleness = 0;
    for (size_t i = 0; i < orders_[rank].size(); ++i) {
      const absl::optional<proto::FrameHeader> pull = workers_[rank]->Await(Kind::PULL);
      if (!pull.has_value()) return -1;
      EXPECT_EQ(pull->step(), static_cast<uint64_t>(number));
      staleness = std::max<int64_t>(staleness, pull->count());
    }
    return staleness;
  }

  void Say(int rank, Kind::Kind kind) {
    proto::FrameHeader header;
    header.set_kind(kind);
    workers_[rank]->Send(header, "");
  }

  void ExpectRunFails(const std::vector<std::string>& texts) {
    for (auto& worker : workers_) {
      const absl::Status status = worker->AwaitFailure();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      for (const std::string& text : texts) {
        EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << "\nlacks " << text;
      }
    }
    workers_.clear();
  }

  const Plan plan_ = ThreeChunks();
  const std::shared_ptr<StreamLink> link_ = NewInProcessLink();
  std::unique_ptr<ParameterServer> server_;
  std::vector<std::unique_ptr<RawStream>> workers_;
  std::vector<std::vector<ChunkId>> orders_;
};

TEST_F(AsyncServerTest, AnswersSayHowManyStepsOfTheSlowestTheyLack) {
  Begin("ssp:2");
  for (int64_t step : {1, 2}) {
    PushStep(0, step);
    EXPECT_EQ(AwaitStep(0, step), step);
  }
  PushStep(0, 3);
  PushStep(1, 1);
  EXPECT_EQ(AwaitStep(1, 1), 0);
  EXPECT_EQ(AwaitStep(0, 3), 2);
}

TEST_F(AsyncServerTest, AnAnswerThatIsNotDueIsAnnouncedOnce) {
  Begin("ssp:1");
  PushStep(0, 1);
  EXPECT_EQ(AwaitStep(0, 1), 1);
  PushStep(0, 2);
  for (ChunkId id : orders_[0]) {
    const absl::optional<proto::FrameHeader> deferred = workers_[0]->Await(Kind::DEFERRED);
    ASSERT_TRUE(deferred.has_value());
    EXPECT_EQ(deferred->step(), 2u);
    EXPECT_EQ(deferred->slot(), static_cast<uint32_t>(id.slot));
  }
  // Applied as well, as far as half a window; rank 1 is answered at once, and releases rank 0.
  PushStep(1, 1);
  EXPECT_EQ(AwaitStep(1, 1), 0);
  EXPECT_EQ(AwaitStep(0, 2), 1);
  // The next one deferred is of the next step: none was announced twice.
  PushStep(0, 3);
  const absl::optional<proto::FrameHeader> next = workers_[0]->Await(Kind::DEFERRED);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->step(), 3u);
}

TEST_F(AsyncServerTest, AGoodbyeBetweenStepsReleasesTheOthers) {
  Begin("ssp:0");
  PushStep(0, 1);
  Say(1, Kind::GOODBYE);
  EXPECT_TRUE(workers_[1]->Await(Kind::GOODBYE).has_value());
  EXPECT_EQ(AwaitStep(0, 1), 0);
  PushStep(0, 2);
  EXPECT_EQ(AwaitStep(0, 2), 0);
  // Nor is the one that left waited for at the end.
  Say(0, Kind::SETTLE);
  for (size_t i = 0; i < orders_[0].size(); ++i) {
    EXPECT_TRUE(workers_[0]->Await(Kind::PARAMETERS).has_value());
  }
  Say(0, Kind::GOODBYE);
  EXPECT_TRUE(workers_[0]->Await(Kind::GOODBYE).has_value());
  workers_.clear();
  EXPECT_EQ(server_->Wait(), absl::OkStatus());
  EXPECT_EQ(server_->stats().steps, 1);  // two of four gradients
}

TEST_F(AsyncServerTest, AGoodbyeInTheMiddleOfAStepFailsTheRun) {
  Begin("asp");
  Push(0, orders_[0][0], 1);
  EXPECT_TRUE(workers_[0]->Await(Kind::PULL).has_value());
  Say(0, Kind::GOODBYE);
  ExpectRunFails({"rank 0", "middle of a step"});
}

TEST_F(AsyncServerTest, APushBeforeTheAnswerToTheOneBeforeFailsTheRun) {
  Begin("ssp:0");
  PushStep(0, 1);
  PushStep(0, 2);
  ExpectRunFails({"rank 0", "step 2", "before step 1 was answered"});
}

TEST_F(AsyncServerTest, APushAfterSettlingFailsTheRun) {
  Begin("asp");
  Say(0, Kind::SETTLE);
  Push(0, orders_[0][0], 1);
  ExpectRunFails({"rank 0", "after it had settled"});
}

TEST_F(AsyncServerTest, ClippingFailsTheRun) {
  Begin("asp");
  Push(0, orders_[0][0], 1, /*max_norm=*/1);
  ExpectRunFails({"rank 0", "max_norm 0", "found 1"});
}

TEST_F(AsyncServerTest, ANormFailsTheRun) {
  Begin("asp");
  Say(0, Kind::NORM);
  ExpectRunFails({"rank 0", "NORM"});
}

TEST_F(AsyncServerTest, SettlingUnderBspFailsTheRun) {
  Begin("");
  Say(1, Kind::SETTLE);
  ExpectRunFails({"rank 1", "SETTLE"});
}

TEST_F(AsyncServerTest, ParametersInTheMiddleOfTheJobFailTheRun) {
  Begin("asp");
  PushStep(0, 1);
  EXPECT_EQ(AwaitStep(0, 1), 1);
  proto::FrameHeader header;
  header.set_kind(Kind::PARAMETERS);
  SetChunk(orders_[0][0], &header);
  workers_[0]->Send(header, std::string(64, '\0'));
  for (auto& worker : workers_) {
    const absl::Status status = worker->AwaitFailure();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
}

class ImpatientAsyncServerTest : public AsyncServerTest {
 protected:
  ImpatientAsyncServerTest() : AsyncServerTest(absl::Seconds(1)) {}
};

TEST_F(ImpatientAsyncServerTest, AWorkerThatIsStoppedWhileOthersHaveSettledIsNamed) {
  Begin("asp");
  std::thread main([this] { server_->Wait().IgnoreError(); });  // as in main(): keeps the time
  PushStep(1, 1);
  Say(0, Kind::SETTLE);
  for (auto& worker : workers_) {
    const absl::Status status = worker->AwaitFailure();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 (10.0.0.1) pushed nothing")) << status;
  }
  workers_.clear();
  main.join();
}

class SuspendedAsyncServerTest : public AsyncServerTest {
 protected:
  SuspendedAsyncServerTest() : AsyncServerTest(absl::Seconds(3)) {}
};

// A job that was suspended for longer than the timeout ended when it was resumed, and a worker was
// blamed that had not been running either.
TEST_F(SuspendedAsyncServerTest, WhileTheJobIsSuspendedNobodyIsSilent) {
  Begin("asp");
  std::thread main([this] { server_->Wait().IgnoreError(); });
  PushStep(1, 1);
  Say(0, Kind::SETTLE);
  SuspendProcess(absl::Seconds(4));
  const MonotonicTime resumed = MonotonicTime::Now();
  const absl::Status status = workers_[0]->AwaitFailure();
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 (10.0.0.1) pushed nothing")) << status;
  // A pause is measured up to a second too short, and looks are half of one apart.
  EXPECT_GT(MonotonicTime::Now() - resumed, absl::Seconds(1));
  workers_.clear();
  main.join();
}

TEST_F(AsyncServerTest, TermsThatCannotBeAreTurnedAway) {
  proto::Hello at_worker = HelloFor(0, "asp");
  at_worker.mutable_terms()->set_update_site(proto::WORKER);
  for (const proto::Hello& hello :
       {at_worker, HelloFor(0, "ssp:-1"), HelloFor(0, "ssp"), HelloFor(0, "later")}) {
    RawStream stranger(*link_, server_->address());
    stranger.SayHello(hello);
    const absl::Status status = stranger.AwaitFailure();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), hello.terms().consistency())) << status;
  }
}

TEST_F(AsyncServerTest, ConsistenciesThatDifferFailTheRunNamingBoth) {
  for (int rank : {0, 1}) {
    workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
    workers_[rank]->SayHello(HelloFor(rank, rank == 0 ? "ssp:3" : ""));
  }
  for (auto& worker : workers_) {
    const absl::Status status = worker->AwaitFailure();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "ssp:3")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "has bsp")) << status;
  }
}

}  // namespace
}  // namespace gradsync
