// What `--link=auto` stands for, by where ranks and servers are.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/group/key_value_store.h"
#include "core/links/server_link.h"
#include "gradsync/join/sync_factory.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/server.h"
#include "tests/rank_threads.h"

namespace gradsync {
namespace {

constexpr int kWorkers = 2;

// Answers like a server on another host, or not at all.
class Elsewhere {
 public:
  explicit Elsewhere(bool answers)
      : listener_(*link_->Listen("127.0.0.1:0", [answers](std::shared_ptr<FrameStream> stream) {
          return std::make_shared<Sink>(std::move(stream), answers);
        })) {}

  std::string address() const { return listener_->address(); }

 private:
  class Sink : public FrameSink {
   public:
    Sink(std::shared_ptr<FrameStream> stream, bool answers)
        : stream_(std::move(stream)), answers_(answers) {}
    void OnFrame(const proto::FrameHeader&, Payload) override {
      if (!answers_) return;
      proto::Host host;
      host.set_key("another-boot/1");
      const auto bytes = std::make_shared<const std::string>(host.SerializeAsString());
      OutgoingFrame frame;
      frame.header.set_kind(proto::FrameHeader::HOST);
      frame.payload = absl::MakeConstSpan(bytes->data(), bytes->size());
      frame.released = [bytes] {};
      stream_->Send(std::move(frame));
      stream_->Finish();
    }
    void OnClosed(absl::Status) override {}

   private:
    const std::shared_ptr<FrameStream> stream_;
    const bool answers_;
  };

  const std::shared_ptr<StreamLink> link_ = NewServerLink();
  const std::unique_ptr<StreamListener> listener_;
};

class ChooseLinkTest : public testing::Test {
 protected:
  ChooseLinkTest() {
    ServerOptions options;
    options.link = NewServerLink();
    server_ = *ParameterServer::Start(options);
    sync_.job.topology = Topology::kPs;
    sync_.servers = {server_->address()};
  }

  // What each rank hears.
  std::vector<absl::StatusOr<std::string>> Choose(const SyncOptions& options) {
    WorkerGroup group;
    group.world_size = kWorkers;
    group.run_id = "choose";
    group.store = NewInMemoryStore();
    group.credentials = InsecureCredentials();
    group.timeout = timeout_;
    std::vector<absl::StatusOr<std::string>> links(kWorkers);
    RunRanks(kWorkers, [&](int rank) {
      WorkerGroup own = group;
      own.rank = rank;
      SyncOptions resolved = options;
      const absl::Status status = ResolveByHosts(own, &resolved);
      links[rank] = status.ok() ? absl::StatusOr<std::string>(LinkName(resolved.job.link)) : status;
    });
    return links;
  }

  void ExpectAllTake(const std::string& link) {
    for (const absl::StatusOr<std::string>& chosen : Choose(sync_)) {
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_EQ(*chosen, link);
    }
  }

  std::unique_ptr<ParameterServer> server_;
  SyncOptions sync_;
  absl::Duration timeout_ = absl::Seconds(30);
};

TEST_F(ChooseLinkTest, WorkersAndServersOfOneHostShareMemory) { ExpectAllTake("shm"); }

TEST_F(ChooseLinkTest, AServerOnAnotherHostMakesAllSend) {
  const Elsewhere elsewhere(/*answers=*/true);
  sync_.servers.push_back(elsewhere.address());
  ExpectAllTake(LinkName(kLinkBetweenHosts));
}

TEST_F(ChooseLinkTest, ARingNeedsNoServers) {
  sync_.job.topology = Topology::kRing;
  sync_.servers.clear();
  ExpectAllTake("shm");
}

TEST_F(ChooseLinkTest, CompressedGradientsAreSent) {
  sync_.job.codec = *ParseCodec("bf16");
  ExpectAllTake(LinkName(kLinkBetweenHosts));
}

TEST_F(ChooseLinkTest, WhatIsAskedForIsTaken) {
  sync_.job.link = Link::kGrpc;
  ExpectAllTake("grpc");
}

TEST_F(ChooseLinkTest, AServerThatDoesNotAnswerIsNamedAndHoldsNobodyUp) {
  const Elsewhere silent(/*answers=*/false);
  sync_.servers = {silent.address()};
  timeout_ = absl::Seconds(2);
  const std::vector<absl::StatusOr<std::string>> links = Choose(sync_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(links[0].status())) << links[0].status();
  EXPECT_TRUE(absl::StrContains(links[0].status().message(), "server 0 (" + silent.address()))
      << links[0].status();
  ASSERT_TRUE(links[1].ok()) << links[1].status();
  EXPECT_EQ(*links[1], LinkName(kLinkBetweenHosts));
}

}  // namespace
}  // namespace gradsync
