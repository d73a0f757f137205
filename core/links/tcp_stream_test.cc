// What is the TCP link's own: strangers, secrets, versions and limits.
#include "core/links/tcp_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/links/raw_connection.h"
#include "core/links/stream_test_util.h"
#include "core/links/tcp_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

std::string Record(TcpRecord::Type type, const std::string& header) {
  std::string bytes;
  AppendRecord(type, header, &bytes);
  return bytes;
}

std::string OpeningRecord(uint32_t oldest = 1, uint32_t newest = 1) {
  TcpOpening opening;
  opening.oldest_version = oldest;
  opening.newest_version = newest;
  return Record(TcpRecord::kOpening, opening.Encode());
}

// The reason in the last record that was heard.
absl::Status EndOf(const std::string& heard) {
  for (size_t at = 0; at + TcpRecord::kPrefixBytes <= heard.size();) {
    const auto record = ReadPrefix(heard.data() + at);
    if (!record.ok()) return record.status();
    at += TcpRecord::kPrefixBytes;
    if (record->type == TcpRecord::kEnd) {
      proto::Error error;
      error.ParseFromString(heard.substr(at, record->header_bytes));
      return absl::Status(static_cast<absl::StatusCode>(error.code()), error.message());
    }
    at += record->header_bytes + record->payload_bytes;
  }
  return absl::OkStatus();
}

Credentials CredentialsOf(const TlsTexts& texts) {
  auto credentials = TlsCredentials(texts);
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  return credentials.ok() ? *credentials : InsecureCredentials();
}

class TcpStreamTest : public ::testing::Test {
 protected:
  void Listen(TcpLinkOptions options = {}, const std::string& address = "127.0.0.1:0") {
    auto listener = NewTcpLink(options)->Listen(address, host_.acceptor());
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  absl::Status TryToOpen(const TcpLinkOptions& options) {
    auto sink = std::make_shared<RecordingSink>();
    auto stream = NewTcpLink(options)->Connect(listener_->address(), 0, sink, Soon());
    if (!stream.ok()) return stream.status();
    (*stream)->Finish();
    opened_ += 1;
    host_.Await(opened_).back().first->Finish();
    return sink->AwaitClosed();
  }

  void ExpectHealthy() { EXPECT_EQ(TryToOpen({}), absl::OkStatus()); }

  Host host_;
  std::unique_ptr<StreamListener> listener_;
  size_t opened_ = 0;
};

TEST_F(TcpStreamTest, BytesThatAreNoRecordDoNotHarmTheListener) {
  Listen();
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                   std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
                                   std::string(5000, '\0'), Pattern(10000, 3)}) {
    RawConnection connection(listener_->address());
    connection.Say(bytes);
    EXPECT_TRUE(absl::IsDataLoss(EndOf(connection.HearAll())));
  }
  ExpectHealthy();
}

TEST_F(TcpStreamTest, WhatDoesNotBelongWhereItComesEndsTheConnection) {
  Listen();
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::HELLO);
  const std::string frame = Record(TcpRecord::kFrame, header.SerializeAsString());
  const std::string finish = Record(TcpRecord::kFinish, "");
  for (const std::string& bytes :
       {frame, finish, Record(TcpRecord::kPing, ""), Record(TcpRecord::kProof, ""),
        Record(TcpRecord::kAccepted, ""), Record(TcpRecord::kOpening, "\xff\xff"),
        OpeningRecord() + OpeningRecord(), OpeningRecord() + finish + frame,
        OpeningRecord() + finish + finish, OpeningRecord() + Record(TcpRecord::kFrame, "\xff"),
        OpeningRecord() + Record(TcpRecord::kEnd, "")}) {
    RawConnection connection(listener_->address());
    connection.Say(bytes);
    EXPECT_TRUE(absl::IsDataLoss(EndOf(connection.HearAll())))
        << static_cast<int>(bytes[3]) << " in " << bytes.size() << " bytes";
  }
}

// Before a stream is open, its peer may be anybody.
TEST_F(TcpStreamTest, AStrangerCannotMakeTheListenerRememberMuch) {
  Listen();
  RawConnection connection(listener_->address());
  connection.Say(Record(TcpRecord::kOpening, std::string(4097, 'x')));
  EXPECT_TRUE(absl::IsResourceExhausted(EndOf(connection.HearAll())));
}

TEST_F(TcpStreamTest, AConnectionWithoutAStreamIsClosedAndOneWithAStreamIsNot) {
  TcpLinkOptions options;
  options.opening_timeout = absl::Seconds(1);
  Listen(options);
  auto sink = std::make_shared<RecordingSink>();
  const auto stream = NewTcpLink()->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (const std::string& bytes : {std::string(), OpeningRecord().substr(0, 10)}) {
    RawConnection mute(listener_->address());
    mute.Say(bytes);
    EXPECT_TRUE(absl::IsDeadlineExceeded(EndOf(mute.HearAll())));
  }
  const auto accepted = host_.Await(1);
  LoanBook book;
  (*stream)->Send(book.Lend("still there", 5));
  EXPECT_TRUE(accepted.at(0).second->AwaitFrames(1));
  accepted[0].first->Finish();
  (*stream)->Finish();
  EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
}

TEST_F(TcpStreamTest, AnotherVersionIsRefusedAndBothAreNamed) {
  Listen();
  RawConnection newer(listener_->address());
  newer.Say(OpeningRecord(2, 4));
  const absl::Status why = EndOf(newer.HearAll());
  EXPECT_TRUE(absl::IsFailedPrecondition(why)) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("expected 1, found 2 to 4"));
  RawConnection both(listener_->address());
  both.Say(OpeningRecord(1, 4) + Record(TcpRecord::kFinish, ""));
  host_.Await(1).at(0).first->Finish();
  EXPECT_EQ(EndOf(both.HearAll()), absl::OkStatus());
}

TEST_F(TcpStreamTest, OnlyWhoHasTheSecretOpensAStream) {
  TcpLinkOptions with, with_another, without;
  with.credentials.secret = "the job's";
  with_another.credentials.secret = "another's";
  Listen(with);
  EXPECT_EQ(TryToOpen(with), absl::OkStatus());
  for (const TcpLinkOptions& options : {without, with_another}) {
    const absl::Status refused = TryToOpen(options);
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(listener_->address()));
  }
  EXPECT_EQ(TryToOpen(with), absl::OkStatus());
  Listen(without);
  EXPECT_TRUE(absl::IsFailedPrecondition(TryToOpen(with)));
}

TEST_F(TcpStreamTest, TheAcceptingEndKnowsWhatTheOpeningOneSaidOfItself) {
  Listen();
  TcpLinkOptions options;
  options.proof = {std::string("run\0 1", 6), "key-1"};
  auto sink = std::make_shared<RecordingSink>();
  const auto stream = NewTcpLink(options)->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  const auto accepted = host_.Await(1);
  EXPECT_EQ(accepted.at(0).first->proof().run, options.proof.run);
  EXPECT_EQ(accepted[0].first->proof().key, "key-1");
}

TEST_F(TcpStreamTest, AFrameBeyondTheListenersLimitEndsTheStream) {
  TcpLinkOptions options;
  options.max_payload_bytes = 1000;
  Listen(options);
  auto sink = std::make_shared<RecordingSink>();
  const auto stream = NewTcpLink()->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  LoanBook book;
  const std::string small(1000, 'x'), large(1001, 'x');
  (*stream)->Send(book.Lend(small, 1));
  ASSERT_TRUE(host_.Await(1).at(0).second->AwaitFrames(1));
  (*stream)->Send(book.Lend(large, 2));
  EXPECT_TRUE(absl::IsResourceExhausted(sink->AwaitClosed()));
  EXPECT_TRUE(book.AwaitAllBack());
}

TEST_F(TcpStreamTest, StreamsHaveTheirOwnConnections) {
  Listen();
  constexpr size_t kStreams = 3;
  const auto link = NewTcpLink();
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (size_t c = 0; c < kStreams; ++c) {
    auto stream = link->Connect(listener_->address(), 0, std::make_shared<RecordingSink>(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  std::set<std::string> peers;
  for (const auto& accepted : host_.Await(kStreams)) {
    accepted.first->Cancel(absl::CancelledError(""));
    peers.emplace(accepted.second->AwaitClosed().message());
  }
  EXPECT_EQ(peers.size(), kStreams);
  EXPECT_THAT(*peers.begin(), HasSubstr("127.0.0.1:"));
}

bool HasIpv6() {
  const int descriptor = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 place = {};
  place.sin6_family = AF_INET6;
  place.sin6_addr = in6addr_loopback;
  const bool bound = bind(descriptor, reinterpret_cast<sockaddr*>(&place), sizeof(place)) == 0;
  if (descriptor >= 0) close(descriptor);
  return bound;
}

TEST_F(TcpStreamTest, ListensAtNamesAndAtAddressesOfBothVersions) {
  for (const std::string address : {"localhost:0", "[::1]:0", "[::]:0", "0.0.0.0:0"}) {
    if (address == "[::1]:0" && !HasIpv6()) continue;  // a container may have none
    TcpLinkOptions options;
    options.credentials.insecure = true;
    host_ = Host();
    opened_ = 0;
    Listen(options, address);
    EXPECT_EQ(TryToOpen({}), absl::OkStatus()) << address;
  }
}

TEST_F(TcpStreamTest, BeyondThisHostItListensOnlyWithASecretOrWhereItIsTold) {
  TcpLinkOptions options;
  options.credentials.insecure = false;
  const auto refused = NewTcpLink(options)->Listen("0.0.0.0:0", host_.acceptor());
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  options.credentials.secret = "the job's";
  Listen(options, "0.0.0.0:0");
}

TEST_F(TcpStreamTest, SomethingElseThatListensIsNamed) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place = {};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(place);
  ASSERT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&place), size), 0);
  ASSERT_EQ(listen(descriptor, 8), 0);
  ASSERT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&place), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(place.sin_port));
  // As one that is stopped, first.
  const auto sink = std::make_shared<RecordingSink>();
  const auto late = NewTcpLink()->Connect(address, 0, sink, Deadline::In(absl::Milliseconds(200)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_THAT(std::string(late.status().message()), HasSubstr(address));
  std::thread http([descriptor] {
    for (int i = 0; i < 2; ++i) {  // the first one gave up
      const int accepted = accept(descriptor, nullptr, nullptr);
      const std::string answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
      send(accepted, answer.data(), answer.size(), MSG_NOSIGNAL);
      close(accepted);
    }
  });
  const auto stream = NewTcpLink()->Connect(address, 0, sink, Soon());
  http.join();
  close(descriptor);
  EXPECT_TRUE(absl::IsFailedPrecondition(stream.status())) << stream.status();
  EXPECT_THAT(std::string(stream.status().message()), HasSubstr("HTTP/1.1 400"));
}

TEST_F(TcpStreamTest, AReasonThatIsTooLongIsCut) {
  Listen();
  auto sink = std::make_shared<RecordingSink>();
  auto stream = NewTcpLink()->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  host_.Await(1).at(0).first->Cancel(absl::AbortedError("rank 2: " + std::string(100000, '\n')));
  const absl::Status status = sink->AwaitClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status.code();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: \n"));
}

// Of a string that is not UTF-8 the peer would read nothing.
TEST_F(TcpStreamTest, AReasonThatIsNoUtf8IsReadByThePeer) {
  Listen();
  auto sink = std::make_shared<RecordingSink>();
  auto stream = NewTcpLink()->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  host_.Await(1).at(0).first->Cancel(absl::AbortedError("rank 2: \xff\xfe"));
  const absl::Status status = sink->AwaitClosed();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: "));
}

TEST_F(TcpStreamTest, FramesOfAllSizesPassThroughTlsBothWaysAtOnce) {
  TcpLinkOptions options;
  options.credentials = CredentialsOf(NewTlsTexts());
  Listen(options);
  auto sink = std::make_shared<RecordingSink>();
  const auto stream = NewTcpLink(options)->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  const auto accepted = host_.Await(1);
  LoanBook book;
  std::vector<std::string> payloads;
  for (size_t bytes : {0, 1, 100, 16383, 16384, 16385, 1 << 20, 0, 5 << 20, 7}) {
    payloads.push_back(Pattern(bytes, payloads.size()));
  }
  std::thread back([&] {
    for (const std::string& payload : payloads) accepted.at(0).first->Send(book.Lend(payload));
    accepted[0].first->Finish();
  });
  for (const std::string& payload : payloads) (*stream)->Send(book.Lend(payload));
  (*stream)->Finish();
  back.join();
  EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
  EXPECT_EQ(accepted[0].second->AwaitClosed(), absl::OkStatus());
  for (const auto& heard : {sink->heard(), accepted[0].second->heard()}) {
    ASSERT_EQ(heard.size(), payloads.size());
    for (size_t i = 0; i < payloads.size(); ++i) {
      EXPECT_TRUE(heard[i].payload == payloads[i]) << payloads[i].size();
    }
  }
  EXPECT_TRUE(book.AwaitAllBack());
}

TEST_F(TcpStreamTest, OnlyWhoHasATrustedCertificateTakesPart) {
  TlsTexts own = NewTlsTexts();
  own.issuers = own.certificate;
  TcpLinkOptions trusted, stranger, plain;
  trusted.credentials = CredentialsOf(own);
  TlsTexts another = NewTlsTexts();
  another.issuers = own.certificate;  // it trusts the listener, which does not trust it
  stranger.credentials = CredentialsOf(another);
  Listen(trusted);
  EXPECT_EQ(TryToOpen(trusted), absl::OkStatus());
  const auto refused = [this](const TcpLinkOptions& options) {
    return NewTcpLink(options)
        ->Connect(listener_->address(), 0, std::make_shared<RecordingSink>(),
                  Deadline::In(absl::Seconds(2)))
        .status();
  };
  EXPECT_FALSE(refused(stranger).ok());
  const absl::Status in_the_clear = refused(plain);
  EXPECT_TRUE(absl::IsFailedPrecondition(in_the_clear)) << in_the_clear;
  EXPECT_THAT(std::string(in_the_clear.message()), HasSubstr("the caller does not"));
  EXPECT_EQ(TryToOpen(trusted), absl::OkStatus());
  // Nor does a listener without TLS take who has it.
  Listen(plain);
  EXPECT_FALSE(refused(trusted).ok());
  RawConnection encrypting(listener_->address());
  encrypting.Say(Record(TcpRecord::kTls, ""));
  const absl::Status not_here = EndOf(encrypting.HearAll());
  EXPECT_TRUE(absl::IsFailedPrecondition(not_here)) << not_here;
  EXPECT_THAT(std::string(not_here.message()), HasSubstr("the caller encrypts"));
  // And who connects does not trust what another listens with.
  Listen(stranger);
  const absl::Status why = refused(trusted);
  EXPECT_THAT(std::string(why.message()), HasSubstr("certificate")) << why;
}

TEST_F(TcpStreamTest, ACertificateForAnotherHostIsRefused) {
  TcpLinkOptions options;
  options.credentials = CredentialsOf(NewTlsTexts());
  Listen(options, "127.0.0.2:0");
  const auto refused = NewTcpLink(options)->Connect(
      listener_->address(), 0, std::make_shared<RecordingSink>(), Deadline::In(absl::Seconds(2)));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("IP address mismatch"))
      << refused.status();
}

// A link may go before its streams.
TEST_F(TcpStreamTest, AStreamOutlivesItsLink) {
  Listen();
  auto sink = std::make_shared<RecordingSink>();
  auto stream = NewTcpLink()->Connect(listener_->address(), 0, sink, Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  LoanBook book;
  const std::string payload = Pattern(1 << 20, 1);
  (*stream)->Send(book.Lend(payload, 1));
  (*stream)->Finish();
  stream->reset();
  const auto accepted = host_.Await(1);
  ASSERT_TRUE(accepted.at(0).second->AwaitFrames(1));
  EXPECT_TRUE(accepted[0].second->heard()[0].payload == payload);
  accepted[0].first->Finish();
  EXPECT_EQ(sink->AwaitClosed(), absl::OkStatus());
}

}  // namespace
}  // namespace gradsync
