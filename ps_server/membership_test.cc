// A server among the members of its run, whose store is another's.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/group/grpc_store.h"
#include "core/group/heartbeat.h"
#include "core/links/in_process_stream.h"
#include "gtest/gtest.h"
#include "ps_server/raw_worker.h"
#include "ps_server/server.h"

namespace gradsync {
namespace {

using Kind = proto::FrameHeader;

Plan TwoWorkers() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {200}, {1}, 0}}, {{0}}, optimizer, 2, /*chunk_bytes=*/64);
}

// To whoever accepts a stream, its end looks like that of a cut link.
class CutSink : public FrameSink {
 public:
  explicit CutSink(std::shared_ptr<FrameSink> sink) : sink_(std::move(sink)) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    sink_->OnFrame(header, std::move(payload));
  }
  void OnPeerFinished() override { sink_->OnPeerFinished(); }
  void OnClosed(absl::Status) override {
    sink_->OnClosed(
        Suspicion(absl::UnavailableError("nothing comes through"), absl::Milliseconds(1)));
  }

 private:
  const std::shared_ptr<FrameSink> sink_;
};

class CutLinks : public StreamLink {
 public:
  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    return link_->Listen(address, [acceptor = std::move(acceptor)](auto stream) {
      return std::make_shared<CutSink>(acceptor(std::move(stream)));
    });
  }
  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    return link_->Connect(address, connection, std::move(sink), deadline);
  }

 private:
  const std::shared_ptr<StreamLink> link_ = NewInProcessLink();
};

class MembershipTest : public testing::Test {
 protected:
  MembershipTest()
      : store_(*GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials())),
        address_(absl::StrCat("127.0.0.1:", store_->port())) {
    ServerOptions options;
    options.link = link_;
    options.run_id = "test";
    options.failure_timeout = absl::Seconds(2);
    options.connect_store =
        [this](const std::string& address, Deadline deadline,
               const std::string& key) -> absl::StatusOr<std::shared_ptr<ConnectedStore>> {
      if (++attempts_ <= unreachable_) return absl::DeadlineExceededError("not yet");
      return ConnectStore(address, InsecureCredentials(), deadline, key);
    };
    server_ = *ParameterServer::Start(options);
  }

  // Two workers of a stage, which are called otherwise in the job.
  void Begin() {
    for (int rank : {0, 1}) {
      workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
      proto::Hello hello = RawStream::HelloFor(plan_, rank);
      hello.set_number(4 + rank + 1);
      hello.set_server_number(7 + 1);
      hello.set_store(address_);
      workers_[rank]->SayHello(hello);
    }
    for (const auto& worker : workers_) ASSERT_TRUE(worker->Await(Kind::HELLO).has_value());
  }

  const Plan plan_ = TwoWorkers();
  const std::shared_ptr<StreamLink> link_ = std::make_shared<CutLinks>();
  const std::unique_ptr<GrpcStoreServer> store_;
  const std::string address_;
  std::atomic<int> attempts_{0};
  std::atomic<int> unreachable_{0};  // attempts that fail
  std::unique_ptr<ParameterServer> server_;
  std::vector<std::unique_ptr<RawStream>> workers_;
};

// The worker was called by its place among those of the server.
TEST_F(MembershipTest, ACutLinkIsNamedAsTheJobCallsItsEnds) {
  ASSERT_EQ(server_->JoinRun(address_, 7), absl::OkStatus());
  Begin();
  workers_[1]->Cancel();
  const absl::Status told = workers_[0]->AwaitFailure();
  EXPECT_TRUE(absl::StrContains(told.message(), "link rank 5 - server 7: nothing comes through"))
      << told;
  EXPECT_TRUE(absl::IsUnavailable(server_->Wait()));
}

// Or nobody would miss it while its first thread, which waits for the run's end, is held.
TEST_F(MembershipTest, AServerThatNobodyWaitsForIsAMember) {
  Begin();
  EXPECT_EQ(
      store_->local()->Get(ServerBeatKey("test/0/", 7), Deadline::In(absl::Seconds(30))).status(),
      absl::OkStatus());
}

// The first attempt was the only one, and nobody heard that it had failed.
TEST_F(MembershipTest, AServerThatDoesNotReachTheStoreTriesAgain) {
  unreachable_ = 2;
  Begin();
  std::thread main([this] { EXPECT_EQ(server_->Wait(), absl::OkStatus()); });
  const std::string beat = ServerBeatKey("test/0/", 7);
  EXPECT_EQ(store_->local()->Get(beat, Deadline::In(absl::Seconds(30))).status(), absl::OkStatus());
  EXPECT_GE(attempts_, 3);  // on a slow machine one that would have come through may take too long
  proto::FrameHeader header;
  header.set_kind(Kind::GOODBYE);
  for (const auto& worker : workers_) {
    worker->Send(header, "");
    EXPECT_TRUE(worker->Await(Kind::GOODBYE).has_value());
  }
  workers_.clear();
  main.join();
}

}  // namespace
}  // namespace gradsync
