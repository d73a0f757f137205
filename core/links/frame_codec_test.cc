#include "core/links/frame_codec.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/links/frame_stream.h"
#include "core/links/stream_test_util.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The same bytes in slices that end at `cuts`.
grpc::ByteBuffer Cut(const std::string& bytes, std::vector<size_t> cuts) {
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(bytes.size());
  std::vector<grpc::Slice> slices;
  size_t begin = 0;
  for (size_t end : cuts) {
    slices.emplace_back(bytes.data() + begin, end - begin);
    begin = end;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

struct Decoded {
  proto::FrameHeader header;
  Payload payload;
};

absl::StatusOr<std::vector<Decoded>> DecodeAll(grpc::ByteBuffer message) {
  std::vector<Decoded> frames;
  const absl::Status decoded =
      FrameDecoder().Decode(&message, [&frames](const proto::FrameHeader& header, Payload payload) {
        frames.push_back({header, std::move(payload)});
        return true;
      });
  if (!decoded.ok()) {
    EXPECT_TRUE(frames.empty()) << "delivered, and then found to be no frame";
    return decoded;
  }
  return frames;
}

// A message of one frame.
absl::Status Decode(grpc::ByteBuffer message, proto::FrameHeader* header, Payload* payload) {
  absl::StatusOr<std::vector<Decoded>> frames = DecodeAll(std::move(message));
  if (!frames.ok()) return frames.status();
  EXPECT_EQ(frames->size(), 1u);
  *header = frames->front().header;
  *payload = std::move(frames->front().payload);
  return absl::OkStatus();
}

grpc::ByteBuffer EncodeFrame(OutgoingFrame frame) {
  return EncodeFrames(absl::MakeSpan(&frame, 1));
}

OutgoingFrame SomeFrame(absl::Span<const char> payload) {
  OutgoingFrame frame;
  frame.header.set_kind(proto::FrameHeader::PUSH);
  frame.header.set_slot(300);
  frame.header.set_step(1ull << 40);
  frame.header.set_name(std::string(200, 'n'));
  frame.payload = payload;
  return frame;
}

TEST(FrameCodecTest, WhatIsWrittenIsAnOrdinaryProtobuf) {
  for (size_t bytes : {0, 1, 127, 128, 70000}) {
    const std::string payload = Pattern(bytes, 1);
    proto::Frame frame;
    ASSERT_TRUE(frame.ParseFromString(Bytes(EncodeFrame(SomeFrame(payload)))));
    EXPECT_EQ(frame.header().SerializeAsString(), SomeFrame("").header.SerializeAsString());
    EXPECT_EQ(frame.payload(), payload);
  }
}

// Payloads of several frames, empty ones among them.
std::vector<std::string> SomePayloads() {
  return {Pattern(90, 7), "", Pattern(1, 8), "", Pattern(300, 9)};
}

std::vector<OutgoingFrame> FramesOf(const std::vector<std::string>& payloads) {
  std::vector<OutgoingFrame> frames;
  for (const std::string& payload : payloads) {
    frames.push_back(SomeFrame(payload));
    frames.back().header.set_slot(frames.size());
  }
  frames[2].header.Clear();
  return frames;
}

void ExpectSomeFrames(const std::vector<Decoded>& decoded) {
  const std::vector<std::string> payloads = SomePayloads();
  const std::vector<OutgoingFrame> frames = FramesOf(payloads);
  ASSERT_EQ(decoded.size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(decoded[i].header.SerializeAsString(), frames[i].header.SerializeAsString()) << i;
    EXPECT_EQ(Flatten(decoded[i].payload), payloads[i]) << i;
  }
}

TEST(FrameCodecTest, SeveralFramesAreOneOrdinaryProtobufOfTheBytesForetold) {
  const std::vector<std::string> payloads = SomePayloads();
  std::vector<OutgoingFrame> frames = FramesOf(payloads);
  size_t most = 0;
  for (const OutgoingFrame& frame : frames) most += EncodedBytes(frame);
  const std::string bytes = Bytes(EncodeFrames(absl::MakeSpan(frames)));
  EXPECT_LE(bytes.size(), most);
  proto::Frame first;
  ASSERT_TRUE(first.ParseFromString(bytes));
  std::vector<Decoded> found = {{first.header(), MakePayload({first.payload()}, nullptr)}};
  for (const proto::Frame& next : first.next()) {
    EXPECT_EQ(next.next_size(), 0);
    found.push_back({next.header(), MakePayload({next.payload()}, nullptr)});
  }
  ExpectSomeFrames(found);
}

TEST(FrameCodecTest, SeveralFramesMayBeCutAnywhere) {
  const std::vector<std::string> payloads = SomePayloads();
  std::vector<OutgoingFrame> frames = FramesOf(payloads);
  const std::string bytes = Bytes(EncodeFrames(absl::MakeSpan(frames)));
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); second += 1 + second % 97) {
      const absl::StatusOr<std::vector<Decoded>> decoded = DecodeAll(Cut(bytes, {first, second}));
      ASSERT_EQ(decoded.status(), absl::OkStatus());
      ExpectSomeFrames(*decoded);
      if (HasFailure()) return;
    }
  }
}

TEST(FrameCodecTest, EachPayloadOfAMessageKeepsIt) {
  const std::vector<std::string> payloads = SomePayloads();
  std::vector<OutgoingFrame> frames = FramesOf(payloads);
  absl::StatusOr<std::vector<Decoded>> decoded =
      DecodeAll(Cut(Bytes(EncodeFrames(absl::MakeSpan(frames))), {3, 230, 500}));
  ASSERT_EQ(decoded.status(), absl::OkStatus());
  const Payload last = decoded->back().payload;
  decoded->clear();
  EXPECT_EQ(Flatten(last), payloads.back());
}

TEST(FrameCodecTest, NothingIsDeliveredAfterTheFrameThatWasTheLastWanted) {
  const std::vector<std::string> payloads = SomePayloads();
  std::vector<OutgoingFrame> frames = FramesOf(payloads);
  const std::string bytes = Bytes(EncodeFrames(absl::MakeSpan(frames)));
  // The second time as another encoding.
  for (const std::string& each : {bytes, bytes + "\x22\x01x"}) {
    int delivered = 0;
    grpc::ByteBuffer message = Cut(each, {});
    EXPECT_TRUE(
        FrameDecoder()
            .Decode(&message, [&](const proto::FrameHeader&, Payload) { return ++delivered < 2; })
            .ok());
    EXPECT_EQ(delivered, 2);
  }
}

TEST(FrameCodecTest, FramesBehindOneThatIsItselfBehindAnotherAreDataLoss) {
  proto::Frame frame;
  frame.add_next()->add_next();
  EXPECT_EQ(DecodeAll(Cut(frame.SerializeAsString(), {})).status().code(),
            absl::StatusCode::kDataLoss);
}

// Every empty frame behind the first, of two or four bytes, took more than a hundred: a message of 64
// MiB, 2 GiB.
TEST(FrameCodecTest, MoreFramesThanGoTogetherAreRefusedHoweverTheyAreWritten) {
  for (const std::string& empty :
       {std::string("\x1a\x02\x0a\x00", 4), std::string("\x1a\x00", 2)}) {
    std::string bytes("\x0a\x00", 2);
    for (size_t i = 1; i < kMostFramesTogether; ++i) bytes += empty;
    const absl::StatusOr<std::vector<Decoded>> most = DecodeAll(Cut(bytes, {5}));
    ASSERT_EQ(most.status(), absl::OkStatus());
    EXPECT_EQ(most->size(), kMostFramesTogether);
    const absl::Status refused = DecodeAll(Cut(bytes + empty, {5})).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(refused.message().find("at most 32 frames"), std::string::npos) << refused;
  }
}

TEST(FrameCodecTest, WhatIsNoPayloadIsBoundedWhereverItStands) {
  const auto field = [](char tag, const std::string& bytes) {
    std::string whole(1, tag);
    for (size_t rest = bytes.size();; rest >>= 7) {
      whole.push_back(static_cast<char>(rest < 128 ? rest : 128 | (rest & 127)));
      if (rest < 128) return whole + bytes;
    }
  };
  const auto repeated = [](const std::string& bytes, size_t total) {
    std::string all;
    while (all.size() < total) all += bytes;
    return all;
  };
  const std::string unknown("\x72\x00", 2);  // of a header, and of a frame
  const size_t most = kMostBytesBesidePayloads;
  const std::string header = field('\x0a', repeated(unknown, most / 8));
  const std::string next = field('\x1a', header);
  const std::string payload = field('\x12', std::string(4 * most, 'p'));
  for (const std::string& bytes : {
           field('\x0a', repeated(unknown, most + 2)),
           header + repeated(next, most),          // each of them is short
           repeated(unknown, most + 2) + payload,  // before the payload
           std::string("\x0a\x00", 2) + payload + repeated(unknown, most + 2),
           repeated(std::string("\x1a\x00", 2), most + 2),
           field('\x1a', repeated(unknown, most + 2)),
           std::string("\x73\x74", 2) + repeated(std::string("\x73\x74", 2), most),  // groups
           std::string("\x07", 1) + std::string(most, '\0'),                         // damaged
       }) {
    const absl::Status refused = DecodeAll(Cut(bytes, {3})).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(refused.message().find("besides payloads"), std::string::npos) << refused;
  }
  // Payloads are not counted, in whatever order and frame they come.
  for (const std::string& bytes :
       {payload + header, unknown + header + payload, header + payload + unknown,
        std::string("\x0a\x00", 2) + field('\x1a', payload + header) + unknown}) {
    EXPECT_EQ(DecodeAll(Cut(bytes, {3})).status(), absl::OkStatus());
  }
}

TEST(FrameCodecTest, ThePayloadIsNotCopiedAndIsReleasedWithTheLastReference) {
  const std::string payload = Pattern(5000, 2);
  LoanBook book;
  grpc::ByteBuffer copy;
  {
    grpc::ByteBuffer buffer = EncodeFrame(book.Lend(payload));
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(reinterpret_cast<const char*>(slices[1].begin()), payload.data());
    copy = buffer;
  }
  EXPECT_EQ(book.back(), 0);
  copy.Clear();
  EXPECT_EQ(book.back(), 1);
}

TEST(FrameCodecTest, AnEmptyPayloadIsReleasedAtOnce) {
  LoanBook book;
  grpc::ByteBuffer buffer = EncodeFrame(book.Lend(""));
  EXPECT_EQ(book.back(), 1);
}

TEST(FrameCodecTest, AMessageMayBeCutAnywhere) {
  const std::string payload = Pattern(90, 3);
  const std::string bytes = Bytes(EncodeFrame(SomeFrame(payload)));
  const std::string header = SomeFrame("").header.SerializeAsString();
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); second += 1 + second % 7) {
      proto::FrameHeader decoded;
      Payload received;
      ASSERT_EQ(Decode(Cut(bytes, {first, second}), &decoded, &received), absl::OkStatus());
      ASSERT_EQ(decoded.SerializeAsString(), header) << first << " " << second;
      ASSERT_EQ(Flatten(received), payload) << first << " " << second;
    }
  }
}

TEST(FrameCodecTest, APayloadOutlivesItsMessage) {
  const std::string payload = Pattern(100000, 4);
  proto::FrameHeader header;
  Payload received;
  {
    grpc::ByteBuffer buffer = Cut(Bytes(EncodeFrame(SomeFrame(payload))), {3, 230, 235, 60001});
    ASSERT_EQ(Decode(buffer, &header, &received), absl::OkStatus());
  }
  EXPECT_EQ(Flatten(received), payload);
}

TEST(FrameCodecTest, OtherValidEncodingsAreRead) {
  proto::Frame frame;
  *frame.mutable_header() = SomeFrame("").header;
  frame.set_payload("payload");
  proto::Frame only_header = frame, only_payload = frame;
  only_header.clear_payload();
  only_payload.clear_header();
  const std::string unknown_field = std::string("\x22\x03", 2) + "abc";
  for (const std::string& bytes : {
           only_payload.SerializeAsString() + only_header.SerializeAsString(),
           unknown_field + frame.SerializeAsString(),
           frame.SerializeAsString() + unknown_field,
           only_header.SerializeAsString() + unknown_field + only_payload.SerializeAsString(),
           only_header.SerializeAsString() + only_header.SerializeAsString() +
               only_payload.SerializeAsString(),
       }) {
    proto::FrameHeader header;
    Payload payload;
    ASSERT_EQ(Decode(Cut(bytes, {4}), &header, &payload), absl::OkStatus());
    EXPECT_EQ(header.SerializeAsString(), frame.header().SerializeAsString());
    EXPECT_EQ(Flatten(payload), "payload");
  }
}

TEST(FrameCodecTest, AnEmptyMessageIsAFrameOfDefaults) {
  proto::FrameHeader header;
  header.set_bucket(5);
  Payload payload;
  EXPECT_EQ(Decode(grpc::ByteBuffer(), &header, &payload).code(), absl::StatusCode::kDataLoss)
      << "no message at all";
  ASSERT_EQ(Decode(Cut("", {}), &header, &payload), absl::OkStatus());
  EXPECT_EQ(header.bucket(), 0u);
  EXPECT_EQ(payload.size(), 0u);
}

// The decoder must say of every message what protobuf's own parser says, but that frames do not
// nest.
void ExpectAgreementWithProtobuf(const std::string& bytes, std::vector<size_t> cuts) {
  const absl::StatusOr<std::vector<Decoded>> decoded = DecodeAll(Cut(bytes, std::move(cuts)));
  proto::Frame first;
  std::vector<const proto::Frame*> frames = {&first};
  bool valid = first.ParseFromString(bytes);
  for (const proto::Frame& next : first.next()) {
    frames.push_back(&next);
    valid = valid && next.next_size() == 0;
  }
  if (!valid) {
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss);
    return;
  }
  ASSERT_EQ(decoded.status(), absl::OkStatus());
  ASSERT_EQ(decoded->size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ((*decoded)[i].header.SerializeAsString(), frames[i]->header().SerializeAsString());
    EXPECT_EQ(Flatten((*decoded)[i].payload), frames[i]->payload());
  }
}

TEST(FrameCodecTest, TruncatedMessagesAreDataLossAsProtobufHasIt) {
  const std::vector<std::string> payloads = SomePayloads();
  std::vector<OutgoingFrame> frames = FramesOf(payloads);
  const std::string bytes = Bytes(EncodeFrames(absl::MakeSpan(frames)));
  for (size_t length = 0; length <= bytes.size(); ++length) {
    ExpectAgreementWithProtobuf(bytes.substr(0, length), {length / 3, length / 2});
  }
}

TEST(FrameCodecTest, RandomAndDamagedMessagesAreReadAsProtobufReadsThem) {
  std::mt19937 random(11);
  std::vector<OutgoingFrame> frames(4);
  const std::string payload = Pattern(60, 6);
  for (OutgoingFrame& frame : frames) {
    frame = SomeFrame(payload);
    frame.header.clear_name();
  }
  const std::string one = Bytes(EncodeFrame(SomeFrame(payload)));
  const std::string several = Bytes(EncodeFrames(absl::MakeSpan(frames)));
  for (int round = 0; round < 60000; ++round) {
    std::string bytes;
    const std::string& whole = round % 4 == 0 ? one : several;
    if (round % 2 == 0) {
      bytes = whole.substr(0, 1 + random() % whole.size());
      for (int i = random() % 4; i >= 0; --i) bytes[random() % bytes.size()] = random();
    } else {
      bytes.resize(random() % 40);
      for (char& c : bytes) c = random();
      // Most random bytes fail at the first tag; lead them further in.
      if (!bytes.empty() && round % 3 == 0) bytes[0] = 0x0a;
      if (bytes.size() > 1 && round % 5 == 0) bytes[1] = random() % 8;
    }
    ExpectAgreementWithProtobuf(bytes, {random() % (bytes.size() + 1)});
    if (HasFailure()) break;
  }
}

constexpr size_t kChunk = 96 << 10;

// How long a message takes on a stream that moves so many bytes a second.
absl::Duration At(double bytes_per_second, size_t bytes) {
  return absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
}

TEST(MessageBudgetTest, OneFrameAtATimeUntilAWriteWasSeen) {
  EXPECT_EQ(MessageBudget().bytes(), 0u);
}

TEST(MessageBudgetTest, TwoFramesFitWhereOneOfTheirSizeWasQuick) {
  const std::string payload(kChunk, 'x');
  OutgoingFrame frames[3];
  for (uint32_t i = 0; i < 3; ++i) {
    frames[i].header.set_slot(i * 1000);
    frames[i].payload = payload;
  }
  MessageBudget budget;
  budget.Written(EncodeFrames(absl::MakeSpan(frames, 1)).Length(), absl::Microseconds(100));
  EXPECT_LE(EncodedBytes(frames[1]) + EncodedBytes(frames[2]), budget.bytes());
}

TEST(MessageBudgetTest, AFastStreamSoonHasTheLargestMessages) {
  MessageBudget budget;
  size_t bytes = kChunk;
  for (int message = 0; message < 4; ++message) {
    budget.Written(bytes, At(2e9, bytes));
    EXPECT_GT(budget.bytes(), bytes);
    bytes = budget.bytes();
  }
  EXPECT_EQ(bytes, kMostBytesTogether);
  budget.Written(bytes, At(2e9, bytes));
  EXPECT_EQ(budget.bytes(), kMostBytesTogether);
}

TEST(MessageBudgetTest, ASlowStreamHasWhatItMovesInTheTime) {
  for (double rate : {1e6, 12.5e6, 40e6}) {
    MessageBudget budget;
    for (int message = 0; message < 3; ++message) budget.Written(kChunk, At(rate, kChunk));
    EXPECT_NEAR(budget.bytes(), rate * absl::ToDoubleSeconds(MessageBudget::kMostTime), 2) << rate;
    EXPECT_LT(budget.bytes(), kChunk);
  }
}

TEST(MessageBudgetTest, ALinkThatCarriesABurstIsSlowFromTheNextMessageOn) {
  MessageBudget budget;
  budget.Written(kChunk, absl::Microseconds(50));
  budget.Written(2 * kChunk, At(12.5e6, 2 * kChunk));
  EXPECT_LT(budget.bytes(), kChunk);
}

TEST(MessageBudgetTest, ShortMessagesTakeNothingFromItOnAFastStream) {
  MessageBudget budget;
  for (int message = 0; message < 5; ++message)
    budget.Written(kMostBytesTogether, At(2e9, 1 << 20));
  budget.Written(20, absl::Microseconds(30));
  EXPECT_EQ(budget.bytes(), kMostBytesTogether);
}

// Messages that take a time of their own, whatever their size, are better large.
TEST(MessageBudgetTest, AFastStreamOfSomeDelayHasLargeMessagesToo) {
  MessageBudget budget;
  size_t bytes = kChunk;
  for (int message = 0; message < 20; ++message) {
    budget.Written(bytes, absl::Milliseconds(1) + At(2e9, bytes));
    bytes = budget.bytes();
  }
  EXPECT_EQ(bytes, kMostBytesTogether);
}

}  // namespace
}  // namespace gradsync
