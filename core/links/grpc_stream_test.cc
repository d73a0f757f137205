// What is gRPC's own: peers that speak the protocol otherwise, or do not speak it.
#include "core/links/grpc_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/grpc_conversions.h"
#include "core/base/monotonic_time.h"
#include "core/base/secret_proof.h"
#include "core/links/grpc_challenge.h"
#include "core/links/stream_test_util.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/frame_link.grpc.pb.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr char kExchange[] = "/gradsync.proto.FrameLink/Exchange";

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return port;
}

grpc::ByteBuffer Message(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// A client that writes one message as it is and waits for the end of the call.
class RawCall : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static grpc::Status Run(const std::string& address, const std::string& method,
                          const std::string& bytes) {
    auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(Soon()));
    RawCall call;
    call.message_ = Message(bytes);
    stub.PrepareBidiStreamingCall(&context, method, grpc::StubOptions(), &call);
    call.StartWrite(&call.message_);
    call.StartCall();
    MutexLock lock(&call.mutex_);
    while (!call.status_) call.changed_.Wait(&call.mutex_);
    return *call.status_;
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mutex_);
    status_ = status;
    changed_.SignalAll();
  }

 private:
  grpc::ByteBuffer message_;
  Mutex mutex_;
  CondVar changed_;
  absl::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

// A server that answers each call with one message as it is, then with a status; `wait` leaves the
// call open instead.
class RawServer : public grpc::CallbackGenericService {
 public:
  RawServer(const std::string& bytes, const grpc::Status& status, bool wait)
      : message_(Message(bytes)), status_(status), wait_(wait) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~RawServer() override { server_->Shutdown(GrpcDeadline(Deadline::Now())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Call : public grpc::ServerGenericBidiReactor {
     public:
      explicit Call(const RawServer* server) : server_(server) {
        StartWrite(&server_->message_);
        if (!server_->wait_) Finish(server_->status_);
      }
      void OnCancel() override {
        if (server_->wait_) Finish(grpc::Status::CANCELLED);
      }
      void OnDone() override { delete this; }

     private:
      const RawServer* const server_;
    };
    return new Call(this);
  }

 private:
  const grpc::ByteBuffer message_;
  const grpc::Status status_;
  const bool wait_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Whoever asks it first gets a challenge that is none of its own, as of a process that was there
// before; and it accepts streams that show a good proof.
class SuccessorServer : public grpc::CallbackGenericService {
 public:
  explicit SuccessorServer(const std::string& secret) : before_(secret), checker_(secret) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~SuccessorServer() override { server_->Shutdown(GrpcDeadline(Deadline::Now())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int streams() const { return streams_; }  // refused ones included

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() == kChallengeMethod) {
      return NewChallengeCall(challenges_++ == 0 ? &before_ : &checker_);
    }
    class Call : public grpc::ServerGenericBidiReactor {
     public:
      explicit Call(bool accepts) {
        if (accepts) {
          StartSendInitialMetadata();
          StartRead(&message_);
        } else {
          Finish(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "refused"));
        }
      }
      void OnReadDone(bool ok) override {
        if (ok) {
          StartRead(&message_);
        } else {
          Finish(grpc::Status::OK);
        }
      }
      void OnDone() override { delete this; }

     private:
      grpc::ByteBuffer message_;
    };
    ++streams_;
    const auto proof = context->client_metadata().find(kProofMetadata);
    return new Call(
        proof != context->client_metadata().end() &&
        checker_.Check(absl::string_view(proof->second.data(), proof->second.size())).ok());
  }

 private:
  ProofChecker before_, checker_;
  std::atomic<int> challenges_{0}, streams_{0};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class GrpcStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = link_->Listen("127.0.0.1:0", host_.acceptor());
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  // A stream to the listener still works.
  void ExpectHealthy() {
    auto sink = std::make_shared<RecordingSink>();
    auto stream = link_->Connect(listener_->address(), 0, sink, Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    host_.Await(1).back().first->Finish();
    (*stream)->Finish();
    EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
  }

  Host host_;
  const std::shared_ptr<StreamLink> link_ = NewGrpcLink();
  std::unique_ptr<StreamListener> listener_;
};

TEST_F(GrpcStreamTest, AClientWithGeneratedCodeCanTakePart) {
  auto channel = grpc::CreateChannel(listener_->address(), grpc::InsecureChannelCredentials());
  auto stub = proto::FrameLink::NewStub(channel);
  grpc::ClientContext context;
  auto call = stub->Exchange(&context);
  proto::Frame frame;
  frame.mutable_header()->set_kind(proto::FrameHeader::HELLO);
  frame.mutable_header()->set_slot(7);
  frame.set_payload(Pattern(300000, 1));
  ASSERT_TRUE(call->Write(frame));
  auto accepted = host_.Await(1);
  ASSERT_EQ(accepted.size(), 1u);
  ASSERT_TRUE(accepted[0].second->AwaitFrames(1));
  EXPECT_EQ(accepted[0].second->heard()[0].header.slot(), 7u);
  EXPECT_EQ(accepted[0].second->heard()[0].payload, frame.payload());
  LoanBook book;
  const std::string payload = Pattern(200000, 2);
  accepted[0].first->Send(book.Lend(payload, 8));
  accepted[0].first->Finish();
  ASSERT_TRUE(call->Read(&frame));
  EXPECT_EQ(frame.header().slot(), 8u);
  EXPECT_EQ(frame.payload(), payload);
  EXPECT_TRUE(call->WritesDone());
  EXPECT_FALSE(call->Read(&frame));
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(accepted[0].second->AwaitClosed(), absl::OkStatus());
}

TEST_F(GrpcStreamTest, FramesThatWaitGoTogetherAndAClientWithGeneratedCodeReadsThem) {
  auto channel = grpc::CreateChannel(listener_->address(), grpc::InsecureChannelCredentials());
  auto stub = proto::FrameLink::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(Soon()));
  auto call = stub->Exchange(&context);
  const auto accepted = host_.Await(1);
  ASSERT_EQ(accepted.size(), 1u);
  // The first is more than the client's window, so the others wait until it is read.
  LoanBook book;
  const std::string large = Pattern(1 << 20, 1), small = Pattern(1000, 2);
  constexpr uint32_t kFrames = 300;
  for (uint32_t i = 0; i < kFrames; ++i) {
    accepted[0].first->Send(book.Lend(i == 0 ? large : small, i));
  }
  accepted[0].first->Finish();
  call->WritesDone();
  uint32_t messages = 0, frames = 0;
  for (proto::Frame frame; call->Read(&frame); ++messages) {
    ASSERT_EQ(frame.header().slot(), frames);
    ASSERT_EQ(frame.payload(), frames == 0 ? large : small);
    ++frames;
    for (const proto::Frame& next : frame.next()) {
      ASSERT_EQ(next.header().slot(), frames);
      ASSERT_EQ(next.payload(), small);
      ++frames;
    }
    EXPECT_LE(frame.next_size(), 31);
  }
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(frames, kFrames);
  EXPECT_LT(messages, kFrames / 2);
  EXPECT_TRUE(book.AwaitAllBack());
}

TEST_F(GrpcStreamTest, StreamsWithDifferentNumbersHaveTheirOwnTcpConnections) {
  constexpr int kConnections = 4;
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (int c = 0; c < kConnections; ++c) {
    auto stream =
        link_->Connect(listener_->address(), c, std::make_shared<RecordingSink>(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  // The accepting end names its peer by the port that the connection comes from.
  std::set<std::string> peers;
  for (const auto& accepted : host_.Await(kConnections)) {
    accepted.first->Cancel(absl::CancelledError(""));
    peers.emplace(accepted.second->AwaitClosed().message());
  }
  EXPECT_EQ(peers.size(), static_cast<size_t>(kConnections)) << *peers.begin();
  EXPECT_THAT(*peers.begin(), HasSubstr("127.0.0.1:"));
}

TEST_F(GrpcStreamTest, AMessageThatIsNoFrameEndsTheStreamWithDataLossAtTheServer) {
  const std::string bytes("\x0a\xff\xff\xff\xff\x0f garbage", 14);
  const grpc::Status status = RawCall::Run(listener_->address(), kExchange, bytes);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("gradsync.proto.Frame"));
  auto accepted = host_.Await(1);
  EXPECT_EQ(accepted.at(0).second->AwaitClosed().code(), absl::StatusCode::kDataLoss);
  ExpectHealthy();
}

TEST_F(GrpcStreamTest, AMessageThatIsNoFrameEndsTheStreamWithDataLossAtTheClient) {
  RawServer server("\x08 garbage", grpc::Status::OK, /*wait=*/true);
  auto sink = std::make_shared<RecordingSink>();
  auto stream = link_->Connect(server.address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  const absl::Status status = sink->AwaitClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(server.address()));
  EXPECT_TRUE(sink->heard().empty());
}

TEST_F(GrpcStreamTest, RandomMessagesDoNotHarmTheServer) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    std::string bytes(random() % 60, '\0');
    for (char& c : bytes) c = random();
    bytes += '\xff';  // a tag without end: never valid
    const grpc::Status status = RawCall::Run(listener_->address(), kExchange, bytes);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
  }
  for (const auto& accepted : host_.Await(100)) {
    EXPECT_EQ(accepted.second->AwaitClosed().code(), absl::StatusCode::kDataLoss);
  }
  ExpectHealthy();
}

TEST_F(GrpcStreamTest, BytesThatAreNotHttpDoNotHarmTheServer) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(PortOf(listener_->address()));
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string bytes = Pattern(10000, 3);
  EXPECT_GT(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  char answer[4096];
  while (recv(fd, answer, sizeof(answer), 0) > 0) {
  }
  close(fd);
  ExpectHealthy();
}

// Such connections held descriptors for as long as their peer liked.
TEST_F(GrpcStreamTest, AConnectionWithoutACallIsClosedAndOneWithAStreamIsNot) {
  GrpcLinkOptions options;
  options.idle_timeout = absl::Milliseconds(200);
  Host host;
  const auto listener = NewGrpcLink(options)->Listen("127.0.0.1:0", host.acceptor());
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto sink = std::make_shared<RecordingSink>();
  const auto stream = link_->Connect((*listener)->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  // The stream says nothing for longer than any of them lasts.
  for (int i = 0; i < 3; ++i) {
    MuteConnection mute(PortOf((*listener)->address()));
    EXPECT_TRUE(mute.AwaitEnd(Soon()));
  }
  const auto accepted = host.Await(1);
  LoanBook book;
  (*stream)->Send(book.Lend("still there", 5));
  EXPECT_TRUE(accepted.at(0).second->AwaitFrames(1));
  accepted[0].first->Finish();
  (*stream)->Finish();
  EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
}

TEST_F(GrpcStreamTest, AnotherMethodIsUnimplemented) {
  const grpc::Status status = RawCall::Run(listener_->address(), "/a.Service/Method", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(kExchange));
}

TEST_F(GrpcStreamTest, AServerWithAnotherServiceIsUnimplementedAndNamed) {
  RawServer server("", grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "what is that"),
                   /*wait=*/false);
  auto sink = std::make_shared<RecordingSink>();
  auto stream = link_->Connect(server.address(), 0, sink, Soon());
  // The server may have accepted first; then the sink hears it.
  const absl::Status status = stream.ok() ? sink->AwaitClosed() : stream.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(server.address()));
}

// A stream showed one proof only, and failed where it came too late.
TEST_F(GrpcStreamTest, AStreamWhoseProofIsRefusedShowsOneOfANewChallengeOnce) {
  GrpcLinkOptions options;
  options.credentials.secret = "the launcher's";
  SuccessorServer server("the launcher's");
  auto sink = std::make_shared<RecordingSink>();
  const auto stream = NewGrpcLink(options)->Connect(server.address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  (*stream)->Finish();
  EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
  EXPECT_EQ(server.streams(), 2);
  SuccessorServer other("another");
  EXPECT_TRUE(absl::IsUnauthenticated(
      NewGrpcLink(options)->Connect(other.address(), 0, sink, Soon()).status()));
  EXPECT_EQ(other.streams(), 2);
}

TEST_F(GrpcStreamTest, APeerThatLeavesBeforeThisEndHasFinishedIsUnavailable) {
  RawServer server("", grpc::Status::OK, /*wait=*/false);
  auto sink = std::make_shared<RecordingSink>();
  auto stream = link_->Connect(server.address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(sink->AwaitClosed().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcStreamTest, AReasonThatIsTooLongIsCut) {
  auto sink = std::make_shared<RecordingSink>();
  auto stream = link_->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  auto accepted = host_.Await(1);
  // Bytes that take three on the wire.
  accepted.at(0).first->Cancel(absl::AbortedError("rank 2: " + std::string(100000, '\n')));
  const absl::Status status = sink->AwaitClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status.code();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: \n"));
}

TEST_F(GrpcStreamTest, APortThatAcceptsButNeverAnswersEndsAtTheDeadline) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string name = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  auto sink = std::make_shared<RecordingSink>();
  const MonotonicTime start = MonotonicTime::Now();
  auto stream = link_->Connect(name, 0, sink, Deadline::At(start + absl::Milliseconds(300)));
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(5));
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kDeadlineExceeded) << stream.status();
  EXPECT_THAT(std::string(stream.status().message()), HasSubstr(name));
  close(fd);
}

}  // namespace
}  // namespace gradsync
