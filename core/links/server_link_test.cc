// One address for gRPC and for TCP.
#include "core/links/server_link.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/links/raw_connection.h"
#include "core/links/stream_test_util.h"
#include "core/links/tcp_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What a gRPC client says first.
constexpr absl::string_view kHttp2("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

Credentials CredentialsOf(const TlsTexts& texts) {
  auto credentials = TlsCredentials(texts);
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  return credentials.ok() ? *credentials : InsecureCredentials();
}

class ServerLinkTest : public ::testing::Test {
 protected:
  void Listen(const Credentials& credentials = InsecureCredentials(),
              absl::Duration opening_timeout = absl::Seconds(10)) {
    GrpcLinkOptions grpc;
    grpc.credentials = credentials;
    TcpLinkOptions tcp;
    tcp.credentials = credentials;
    tcp.opening_timeout = opening_timeout;
    auto listener = NewServerLink(grpc, tcp)->Listen("127.0.0.1:0", host_.acceptor());
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  static std::shared_ptr<StreamLink> NewLink(bool tcp, const Credentials& credentials) {
    const StreamProof proof = {"run", "key"};
    if (tcp) {
      TcpLinkOptions options;
      options.credentials = credentials;
      options.proof = proof;
      return NewTcpLink(options);
    }
    GrpcLinkOptions options;
    options.credentials = credentials;
    options.proof = proof;
    return NewGrpcLink(options);
  }

  // Opens a stream, sends a large frame each way, and closes it.
  absl::Status Exchange(bool tcp, const Credentials& credentials,
                        absl::Duration patience = absl::Seconds(30)) {
    const auto sink = std::make_shared<RecordingSink>();
    const auto stream =
        NewLink(tcp, credentials)->Connect(listener_->address(), 0, sink, Deadline::In(patience));
    if (!stream.ok()) return stream.status();
    const auto accepted = host_.Await(++opened_).back();
    EXPECT_EQ(accepted.first->proof().run, "run");
    EXPECT_EQ(accepted.first->proof().key, "key");
    const std::string payload = Pattern(3 << 20, static_cast<uint32_t>(opened_));
    LoanBook book;
    (*stream)->Send(book.Lend(payload, 1));
    (*stream)->Finish();
    accepted.first->Send(book.Lend(payload, 2));
    accepted.first->Finish();
    EXPECT_EQ(accepted.second->AwaitClosed(), absl::OkStatus());
    const absl::Status closed = sink->AwaitClosed();
    for (const auto& heard : {sink->heard(), accepted.second->heard()}) {
      EXPECT_EQ(heard.size(), 1u);
      EXPECT_TRUE(!heard.empty() && heard[0].payload == payload);
    }
    EXPECT_TRUE(book.AwaitAllBack());
    return closed;
  }

  Host host_;
  std::unique_ptr<StreamListener> listener_;
  size_t opened_ = 0;
};

TEST_F(ServerLinkTest, StreamsOfBothKindsComeToOneAddress) {
  Listen();
  for (bool tcp : {false, true, true, false}) {
    EXPECT_EQ(Exchange(tcp, InsecureCredentials()), absl::OkStatus()) << tcp;
  }
}

TEST_F(ServerLinkTest, BothKindsProveTheSecret) {
  Credentials with = InsecureCredentials(), another = with;
  with.secret = "the job's";
  another.secret = "another's";
  Listen(with);
  for (bool tcp : {false, true}) {
    EXPECT_EQ(Exchange(tcp, with), absl::OkStatus()) << tcp;
    for (const Credentials& credentials : {InsecureCredentials(), another}) {
      EXPECT_TRUE(absl::IsUnauthenticated(Exchange(tcp, credentials))) << tcp;
    }
  }
}

TEST_F(ServerLinkTest, BothKindsAreEncrypted) {
  TlsTexts texts = NewTlsTexts();
  texts.issuers = texts.certificate;
  const Credentials trusted = CredentialsOf(texts), stranger = CredentialsOf(NewTlsTexts());
  Listen(trusted);
  for (bool tcp : {false, true}) {
    EXPECT_EQ(Exchange(tcp, trusted), absl::OkStatus()) << tcp;
    for (const Credentials& credentials : {stranger, InsecureCredentials()}) {
      EXPECT_FALSE(Exchange(tcp, credentials, absl::Seconds(1)).ok()) << tcp;
    }
  }
  EXPECT_EQ(Exchange(/*tcp=*/true, trusted), absl::OkStatus());
}

// The first byte alone may not tell.
TEST_F(ServerLinkTest, WhoseAConnectionIsIsKnownHoweverItsBytesCome) {
  Listen();
  TcpOpening opening;
  opening.proof = {"run", "key"};
  std::string bytes;
  AppendRecord(TcpRecord::kOpening, opening.Encode(), &bytes);
  RawConnection tcp(listener_->address());
  for (const char c : bytes) tcp.Say(std::string(1, c));
  EXPECT_EQ(host_.Await(1).at(0).first->proof().run, "run");
  EXPECT_THAT(tcp.Hear(4), StartsWith(std::string("GS\1\4", 4)));

  RawConnection grpc(listener_->address());
  for (const char c : kHttp2) grpc.Say(std::string(1, c));
  const std::string settings = grpc.Hear(9);  // a frame's header, of type 4
  ASSERT_GE(settings.size(), 9u);
  EXPECT_EQ(settings[3], '\4');

  RawConnection neither(listener_->address());
  neither.Say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(neither.HearAll(), Not(HasSubstr("GS")));
  EXPECT_EQ(Exchange(/*tcp=*/false, InsecureCredentials()), absl::OkStatus());
}

TEST_F(ServerLinkTest, WhoSaysNothingOrTooLittleIsSentAway) {
  Listen(InsecureCredentials(), absl::Seconds(1));
  RawConnection silent(listener_->address()), slow(listener_->address());
  slow.Say("G");
  for (RawConnection* connection : {&silent, &slow}) {
    EXPECT_THAT(connection->HearAll(), HasSubstr("no stream was opened"));
  }
}

TEST_F(ServerLinkTest, AListenerEndsWithAllThatHasCome) {
  Listen();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (bool tcp : {false, true}) {
    sinks.push_back(std::make_shared<RecordingSink>());
    auto stream =
        NewLink(tcp, InsecureCredentials())->Connect(listener_->address(), 0, sinks.back(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*std::move(stream));
  }
  RawConnection silent(listener_->address()), begun(listener_->address());
  begun.Say("G");
  const std::string address = listener_->address();
  listener_.reset();
  for (const auto& sink : sinks) {
    const absl::Status status = sink->AwaitClosed();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the listener closed"));
  }
  const auto again = NewServerLink()->Listen(address, host_.acceptor());
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST_F(ServerLinkTest, APortThatIsTakenIsRefused) {
  Listen();
  const auto taken = NewServerLink()->Listen(listener_->address(), host_.acceptor());
  EXPECT_TRUE(absl::IsUnavailable(taken.status())) << taken.status();
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr(listener_->address()));
}

}  // namespace
}  // namespace gradsync
