// What every link keeps, whatever carries it.
#include "core/links/frame_stream.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/server_link.h"
#include "core/links/stream_test_util.h"
#include "core/links/tcp_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

struct LinkKind {
  std::string name;
  std::function<std::shared_ptr<StreamLink>()> make;
};

std::vector<LinkKind> LinkKinds() {
  InProcessLinkOptions unkind;
  unkind.split_payloads = true;
  unkind.max_delay = absl::Microseconds(300);
  unkind.seed = 7;
  return {
      {"in_process", [] { return NewInProcessLink(); }},
      {"in_process_unkind", [unkind] { return NewInProcessLink(unkind); }},
      {"grpc", [] { return NewGrpcLink(); }},
      {"tcp", [] { return NewTcpLink(); }},
      {"grpc_to_server", [] { return NewServerLink(); }},
      {"near", [] { return NewNearLink(NewGrpcLink(), StreamProof()); }},
  };
}

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

// One listener, one stream opened to it.
class FrameStreamTest : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    link_ = GetParam().make();
    auto listener = link_->Listen("127.0.0.1:0", host_.acceptor());
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  void Open() { Open(std::make_shared<RecordingSink>()); }

  void Open(std::shared_ptr<RecordingSink> sink) {
    client_sink_ = std::move(sink);
    auto stream = link_->Connect(listener_->address(), 0, client_sink_, Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    client_ = *std::move(stream);
    auto accepted = host_.Await(1);
    ASSERT_EQ(accepted.size(), 1u);
    server_ = accepted[0].first;
    server_sink_ = accepted[0].second;
  }

  Host host_;
  std::shared_ptr<StreamLink> link_;
  std::unique_ptr<StreamListener> listener_;
  std::shared_ptr<FrameStream> client_, server_;
  std::shared_ptr<RecordingSink> client_sink_, server_sink_;
};

INSTANTIATE_TEST_SUITE_P(, FrameStreamTest, ::testing::ValuesIn(LinkKinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FrameStreamTest, FramesArriveInOrderInBothDirectionsAtOnce) {
  Open();
  constexpr uint32_t kFrames = 300;
  LoanBook book;
  const std::string there = Pattern(4099, 1), back = Pattern(2051, 2);
  std::thread server([&] {
    for (uint32_t i = 0; i < kFrames; ++i) server_->Send(book.Lend(back, i));
    server_->Finish();
  });
  for (uint32_t i = 0; i < kFrames; ++i) client_->Send(book.Lend(there, i));
  client_->Finish();
  server.join();
  EXPECT_EQ(client_sink_->AwaitClosed(), absl::OkStatus());
  EXPECT_EQ(server_sink_->AwaitClosed(), absl::OkStatus());
  for (const auto& [sink, payload] :
       {std::make_pair(server_sink_, there), std::make_pair(client_sink_, back)}) {
    const auto heard = sink->heard();
    ASSERT_EQ(heard.size(), kFrames);
    for (uint32_t i = 0; i < kFrames; ++i) {
      ASSERT_EQ(heard[i].header.slot(), i);
      ASSERT_EQ(heard[i].payload, payload);
    }
    EXPECT_EQ(sink->misplaced_calls(), 0);
  }
  EXPECT_TRUE(book.AwaitAllBack());
}

TEST_P(FrameStreamTest, PayloadsOfAllSizesArriveUnchanged) {
  Open();
  LoanBook book;
  std::vector<std::string> payloads;
  for (size_t bytes : {0, 1, 3, 4 * 1024 + 1, 1 << 20, 20 << 20, 0, 5}) {
    payloads.push_back(Pattern(bytes, payloads.size()));
  }
  for (size_t i = 0; i < payloads.size(); ++i) client_->Send(book.Lend(payloads[i], i));
  ASSERT_TRUE(server_sink_->AwaitFrames(payloads.size()));
  const auto heard = server_sink_->heard();
  for (size_t i = 0; i < payloads.size(); ++i) {
    EXPECT_EQ(heard[i].header.slot(), i);
    EXPECT_TRUE(heard[i].payload == payloads[i]) << payloads[i].size() << " bytes";
  }
  EXPECT_TRUE(book.AwaitAllBack());
  client_->Cancel(absl::CancelledError("test over"));
}

TEST_P(FrameStreamTest, AHeaderArrivesWithAllItsFields) {
  Open();
  OutgoingFrame frame;
  frame.header.set_kind(proto::FrameHeader::FAILED);
  frame.header.set_bucket(1);
  frame.header.set_step(1ull << 40);
  frame.header.set_lr(0.1);
  frame.header.mutable_error()->set_code(14);
  frame.header.mutable_error()->set_message(std::string(10000, 'x'));
  frame.header.set_name("momentum");
  frame.header.set_norm(-3.5);
  const std::string expected = frame.header.SerializeAsString();
  server_->Send(std::move(frame));
  ASSERT_TRUE(client_sink_->AwaitFrames(1));
  EXPECT_EQ(client_sink_->heard()[0].header.SerializeAsString(), expected);
  EXPECT_EQ(client_sink_->heard()[0].payload, "");
  server_->Cancel(absl::CancelledError("test over"));
}

TEST_P(FrameStreamTest, AReceiverMayKeepPayloadsAfterTheStreamHasClosed) {
  auto keeper = std::make_shared<RecordingSink>(/*keep_owners=*/true);
  Open(keeper);
  LoanBook book;
  const std::string payload = Pattern(100001, 3);
  for (int i = 0; i < 5; ++i) server_->Send(book.Lend(payload, i));
  server_->Finish();
  client_->Finish();
  EXPECT_EQ(keeper->AwaitClosed(), absl::OkStatus());
  EXPECT_EQ(server_sink_->AwaitClosed(), absl::OkStatus());
  keeper->DropOwners();
  EXPECT_TRUE(book.AwaitAllBack());
}

TEST_P(FrameStreamTest, UrgentFramesOvertakeQueuedOnesAndKeepTheirOrder) {
  Mutex gate;  // holds up the receiver until everything is queued
  host_ = Host([&gate] {
    return std::make_shared<RecordingSink>(false, [&gate] { MutexLock lock(&gate); });
  });
  listener_ = *link_->Listen("127.0.0.1:0", host_.acceptor());
  Open();
  LoanBook book;
  constexpr uint32_t kFrames = 64;
  const std::string large = Pattern(1 << 20, 1);
  {
    MutexLock lock(&gate);
    for (uint32_t i = 0; i < kFrames; ++i) client_->Send(book.Lend(large, i));
    client_->Send(book.Lend("", 1000, /*urgent=*/true));
    client_->Send(book.Lend("", 1001, /*urgent=*/true));
  }
  ASSERT_TRUE(server_sink_->AwaitFrames(kFrames + 2));
  std::vector<uint32_t> plain, urgent;
  size_t place_of_first = 0, place = 0;
  for (const auto& heard : server_sink_->heard()) {
    if (heard.header.slot() == 1000) place_of_first = place;
    (heard.header.slot() < 1000 ? plain : urgent).push_back(heard.header.slot());
    ++place;
  }
  EXPECT_THAT(urgent, ::testing::ElementsAre(1000, 1001));
  EXPECT_TRUE(std::is_sorted(plain.begin(), plain.end()));
  EXPECT_LT(place_of_first, kFrames) << "nothing was overtaken";
  EXPECT_TRUE(book.AwaitAllBack());
  listener_.reset();
}

TEST_P(FrameStreamTest, AStreamStaysOpenUntilBothEndsHaveFinished) {
  Open();
  LoanBook book;
  client_->Finish();
  server_->Send(book.Lend("still open", 1));
  ASSERT_TRUE(client_sink_->AwaitFrames(1));
  EXPECT_FALSE(client_sink_->closed());
  EXPECT_FALSE(server_sink_->closed());
  server_->Finish();
  EXPECT_EQ(client_sink_->AwaitClosed(), absl::OkStatus());
  EXPECT_EQ(server_sink_->AwaitClosed(), absl::OkStatus());
}

TEST_P(FrameStreamTest, FramesSentAfterFinishOrAfterTheEndAreDroppedAndReleased) {
  Open();
  LoanBook book;
  client_->Finish();
  client_->Send(book.Lend("late", 1));
  EXPECT_TRUE(book.AwaitAllBack());
  server_->Finish();
  EXPECT_EQ(client_sink_->AwaitClosed(), absl::OkStatus());
  EXPECT_EQ(server_sink_->AwaitClosed(), absl::OkStatus());
  client_->Send(book.Lend("later", 2));
  server_->Send(book.Lend("later", 3));
  client_->Finish();
  server_->Cancel(absl::InternalError("too late to matter"));
  EXPECT_TRUE(book.AwaitAllBack());
  EXPECT_TRUE(server_sink_->heard().empty());
  EXPECT_TRUE(client_sink_->heard().empty());
  EXPECT_EQ(client_sink_->misplaced_calls(), 0);
  EXPECT_EQ(server_sink_->misplaced_calls(), 0);
}

TEST_P(FrameStreamTest, WhenTheAcceptedEndCancelsThePeerSeesCodeAndMessage) {
  Open();
  server_->Cancel(absl::FailedPreconditionError("plans differ: 12ab against 34cd"));
  const absl::Status at_client = client_sink_->AwaitClosed();
  EXPECT_EQ(at_client.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(at_client.message()), HasSubstr("plans differ: 12ab against 34cd"));
  EXPECT_THAT(std::string(at_client.message()), HasSubstr(listener_->address()));
  const absl::Status at_server = server_sink_->AwaitClosed();
  EXPECT_EQ(at_server.code(), absl::StatusCode::kCancelled) << at_server;
  EXPECT_THAT(std::string(at_server.message()), HasSubstr("plans differ"));
}

TEST_P(FrameStreamTest, WhenTheOpenedEndCancelsThePeerSeesUnavailable) {
  Open();
  client_->Cancel(absl::AbortedError("rank 3 failed"));
  EXPECT_EQ(server_sink_->AwaitClosed().code(), absl::StatusCode::kUnavailable);
  const absl::Status at_client = client_sink_->AwaitClosed();
  EXPECT_EQ(at_client.code(), absl::StatusCode::kCancelled) << at_client;
  EXPECT_THAT(std::string(at_client.message()), HasSubstr("rank 3 failed"));
}

TEST_P(FrameStreamTest, CancelFromWithinASinkAndFromManyThreadsEndsTheStreamOnce) {
  std::shared_ptr<FrameStream>* client = &client_;
  Mutex ready;
  ready.Lock();
  Open(std::make_shared<RecordingSink>(false, [&ready, client] {
    MutexLock lock(&ready);
    (*client)->Cancel(absl::CancelledError("from the sink"));
  }));
  ready.Unlock();
  LoanBook book;
  const std::string payload = Pattern(300000, 5);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        server_->Send(book.Lend(payload, i, i % 3 == 0));
        client_->Send(book.Lend(payload, i, i % 3 == 0));
        if (t == 0 && i == 25) server_->Cancel(absl::AbortedError("enough"));
        if (t == 1 && i == 30) client_->Cancel(absl::AbortedError("enough"));
        if (t == 2 && i == 35) client_->Finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(client_sink_->AwaitClosed().ok());
  EXPECT_FALSE(server_sink_->AwaitClosed().ok());
  EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
  EXPECT_EQ(client_sink_->misplaced_calls(), 0);
  EXPECT_EQ(server_sink_->misplaced_calls(), 0);
}

TEST_P(FrameStreamTest, QueuedFramesAreReleasedOnceWhenAStreamIsCancelled) {
  for (bool cancel_at_client : {true, false}) {
    Host host;
    auto listener = link_->Listen("127.0.0.1:0", host.acceptor());
    ASSERT_TRUE(listener.ok());
    auto sink = std::make_shared<RecordingSink>();
    auto stream = link_->Connect((*listener)->address(), 0, sink, Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    auto accepted = host.Await(1);
    LoanBook book;
    const std::string payload = Pattern(1 << 20, 9);
    for (int i = 0; i < 100; ++i) {
      (*stream)->Send(book.Lend(payload, i));
      accepted[0].first->Send(book.Lend(payload, i));
    }
    (cancel_at_client ? *stream : accepted[0].first)->Cancel(absl::AbortedError("enough"));
    EXPECT_FALSE(sink->AwaitClosed().ok());
    EXPECT_FALSE(accepted[0].second->AwaitClosed().ok());
    EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
  }
}

TEST_P(FrameStreamTest, ParallelConnectionsCarryTheirOwnOrder) {
  constexpr int kConnections = 4, kFrames = 100;
  LoanBook book;
  const std::string payload = Pattern(70001, 4);
  std::vector<std::shared_ptr<FrameStream>> streams;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int c = 0; c < kConnections; ++c) {
    sinks.push_back(std::make_shared<RecordingSink>());
    auto stream = link_->Connect(listener_->address(), c, sinks.back(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  auto accepted = host_.Await(kConnections);
  ASSERT_EQ(accepted.size(), static_cast<size_t>(kConnections));
  for (int i = 0; i < kFrames; ++i) {
    for (int c = 0; c < kConnections; ++c) {
      streams[c]->Send(book.Lend(payload, i));
      accepted[c].first->Send(book.Lend(payload, i));
    }
  }
  for (int c = 0; c < kConnections; ++c) {
    streams[c]->Finish();
    accepted[c].first->Finish();
  }
  for (int c = 0; c < kConnections; ++c) {
    EXPECT_EQ(sinks[c]->AwaitClosed(), absl::OkStatus());
    EXPECT_EQ(accepted[c].second->AwaitClosed(), absl::OkStatus());
    for (const auto& sink : {sinks[c], accepted[c].second}) {
      const auto heard = sink->heard();
      ASSERT_EQ(heard.size(), static_cast<size_t>(kFrames));
      for (int i = 0; i < kFrames; ++i) ASSERT_EQ(heard[i].header.slot(), static_cast<uint32_t>(i));
    }
  }
  EXPECT_TRUE(book.AwaitAllBack());
}

TEST_P(FrameStreamTest, DestroyingAListenerUnderLoadClosesItsStreams) {
  constexpr int kStreams = 3;
  LoanBook book;
  const std::string payload = Pattern(200003, 6);
  std::vector<std::shared_ptr<FrameStream>> streams;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int c = 0; c < kStreams; ++c) {
    sinks.push_back(std::make_shared<RecordingSink>());
    auto stream = link_->Connect(listener_->address(), c, sinks.back(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  auto accepted = host_.Await(kStreams);
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    for (uint32_t i = 0; !stop; ++i) {
      for (int c = 0; c < kStreams; ++c) {
        streams[c]->Send(book.Lend(payload, i));
        accepted[c].first->Send(book.Lend(payload, i));
      }
      std::this_thread::yield();
    }
  });
  ASSERT_TRUE(sinks[0]->AwaitFrames(5));
  listener_.reset();
  for (int c = 0; c < kStreams; ++c) {
    EXPECT_TRUE(accepted[c].second->closed()) << "the listener did not wait for stream " << c;
  }
  stop = true;
  sender.join();
  for (int c = 0; c < kStreams; ++c) {
    EXPECT_EQ(sinks[c]->AwaitClosed().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
}

TEST_P(FrameStreamTest, ConnectingToNobodyEndsAtTheDeadlineAndNamesTheAddress) {
  const std::string address = listener_->address();
  listener_.reset();
  auto sink = std::make_shared<RecordingSink>();
  const MonotonicTime start = MonotonicTime::Now();
  auto stream = link_->Connect(address, 0, sink, Deadline::At(start + absl::Milliseconds(300)));
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(10));
  ASSERT_FALSE(stream.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream.status()) || absl::IsUnavailable(stream.status()))
      << stream.status();
  EXPECT_THAT(std::string(stream.status().message()), HasSubstr(address));
  EXPECT_FALSE(sink->closed());
}

TEST_P(FrameStreamTest, ConnectWaitsForAListenerThatComesLater) {
  const std::string address = listener_->address();
  listener_.reset();
  auto sink = std::make_shared<RecordingSink>();
  absl::StatusOr<std::shared_ptr<FrameStream>> stream = absl::UnknownError("not yet");
  std::thread connecting([&] { stream = link_->Connect(address, 0, sink, Soon()); });
  Host later;
  auto listener = link_->Listen(address, later.acceptor());
  connecting.join();
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_TRUE(stream.ok()) << stream.status();
  (*stream)->Finish();
  later.Await(1).at(0).first->Finish();
  EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
}

TEST_P(FrameStreamTest, ATakenPortIsUnavailableAndNamed) {
  auto second = link_->Listen(listener_->address(), Host().acceptor());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(listener_->address()));
}

TEST_P(FrameStreamTest, AnAddressWithoutPortIsInvalid) {
  for (const char* address : {"", "localhost", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:70000"}) {
    auto listener = link_->Listen(address, Host().acceptor());
    EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST_P(FrameStreamTest, ARefusedStreamFailsToConnect) {
  auto listener = link_->Listen(
      "127.0.0.1:0", [](std::shared_ptr<FrameStream>) { return std::shared_ptr<FrameSink>(); });
  ASSERT_TRUE(listener.ok());
  auto sink = std::make_shared<RecordingSink>();
  auto stream = link_->Connect((*listener)->address(), 0, sink, Soon());
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kUnavailable) << stream.status();
  EXPECT_THAT(std::string(stream.status().message()), HasSubstr((*listener)->address()));
  EXPECT_FALSE(sink->closed());
}

TEST_P(FrameStreamTest, ASinkMayAnswerFromWithinOnFrame) {
  Open();
  LoanBook book;
  const std::string payload = Pattern(9001, 8);
  constexpr int kRounds = 200;
  // Both sinks are plain recorders; ping-pong over a third stream with sinks that answer.
  struct Answering : public FrameSink {
    void OnFrame(const proto::FrameHeader& header, Payload) override {
      OutgoingFrame frame;
      frame.header = header;
      frame.header.set_hop(header.hop() + 1);
      stream->Send(std::move(frame));
    }
    void OnClosed(absl::Status) override { stream.reset(); }
    std::shared_ptr<FrameStream> stream;
  };
  auto listener = link_->Listen("127.0.0.1:0", [](std::shared_ptr<FrameStream> stream) {
    auto sink = std::make_shared<Answering>();
    sink->stream = std::move(stream);
    return sink;
  });
  ASSERT_TRUE(listener.ok());
  auto sink = std::make_shared<RecordingSink>();
  auto stream = link_->Connect((*listener)->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (int i = 0; i < kRounds; ++i) (*stream)->Send(book.Lend(payload, i));
  ASSERT_TRUE(sink->AwaitFrames(kRounds));
  EXPECT_EQ(sink->heard().back().header.hop(), 1u);
  (*stream)->Cancel(absl::CancelledError("test over"));
  EXPECT_TRUE(book.AwaitAllBack());
}

}  // namespace
}  // namespace gradsync
