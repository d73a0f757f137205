#include "core/links/frames.h"

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "proto/peer.pb.h"

namespace gradsync {
namespace {

Payload InTwoParts(const std::string& bytes) {
  const absl::Span<const char> all(bytes.data(), bytes.size());
  const size_t half = bytes.size() / 2;
  return MakePayload({all.subspan(0, half), all.subspan(half)}, nullptr);
}

TEST(ParsePayloadTest, AMessageOfAtMostTheLimitIsRead) {
  proto::PeerHello hello;
  hello.set_address("10.0.0.7:4000");
  const std::string bytes = hello.SerializeAsString();
  proto::PeerHello read;
  EXPECT_TRUE(ParsePayload(InTwoParts(bytes), bytes.size(), &read));
  EXPECT_EQ(read.address(), "10.0.0.7:4000");
  EXPECT_FALSE(ParsePayload(InTwoParts(bytes), bytes.size() - 1, &read));
  EXPECT_FALSE(ParsePayload(InTwoParts("no message"), kMaxGreetingBytes, &read));
}

TEST(FrameErrorTest, EveryErrorArrivesAsItWasSent) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status sent(static_cast<absl::StatusCode>(code), "disk on fire");
    const proto::FrameHeader header = FailedHeader(sent);
    EXPECT_EQ(header.kind(), proto::FrameHeader::FAILED);
    EXPECT_EQ(FailureIn(header), sent);
  }
}

// Half a character made the whole frame unreadable: the peer took it for damaged, and did not hear
// why.
TEST(FrameErrorTest, AMessageThatIsCutOrNoUtf8IsReadByThePeer) {
  const std::string euros = [] {
    std::string text = "rank 1 lost: ";
    while (text.size() < 5000) text += "\xe2\x82\xac";
    return text;
  }();
  for (size_t skipped = 0; skipped < 3; ++skipped) {
    for (const std::string& message : {euros.substr(skipped), euros.substr(skipped, 2000)}) {
      proto::FrameHeader read;
      ASSERT_TRUE(
          read.ParseFromString(FailedHeader(absl::AbortedError(message)).SerializeAsString()));
      const absl::Status found = FailureIn(read);
      EXPECT_TRUE(absl::IsAborted(found)) << found;
      EXPECT_TRUE(absl::StrContains(found.message(), "1 lost: \xe2\x82\xac")) << found;
      EXPECT_LE(found.message().size(), 4096u);
    }
  }
}

// A peer that said FAILED with the code OK ended its reader with a CHECK: a StatusOr is not made of
// an OK status.
TEST(FrameErrorTest, ACodeThatIsNoErrorsIsUnknownAndNamed) {
  for (int code : {0, 17, -1, INT32_MAX, INT32_MIN}) {
    proto::FrameHeader header = FailedHeader(absl::InternalError("all is well"));
    header.mutable_error()->set_code(code);
    const absl::Status found = FailureIn(header);
    EXPECT_EQ(found.code(), absl::StatusCode::kUnknown) << found;
    EXPECT_TRUE(absl::StrContains(found.message(), std::to_string(code))) << found;
    EXPECT_TRUE(absl::StrContains(found.message(), "all is well")) << found;
  }
  proto::FrameHeader bare;
  bare.set_kind(proto::FrameHeader::FAILED);
  EXPECT_EQ(FailureIn(bare).code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace gradsync
