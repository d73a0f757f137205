#include "core/links/parse_payload.h"

#include <string>

#include "gtest/gtest.h"
#include "proto/ring.pb.h"

namespace gradsync {
namespace {

Payload InTwoParts(const std::string& bytes) {
  const absl::Span<const char> all(bytes.data(), bytes.size());
  const size_t half = bytes.size() / 2;
  return MakePayload({all.subspan(0, half), all.subspan(half)}, nullptr);
}

TEST(ParsePayloadTest, AMessageOfAtMostTheLimitIsRead) {
  proto::RingHello hello;
  hello.set_address("10.0.0.7:4000");
  const std::string bytes = hello.SerializeAsString();
  proto::RingHello read;
  EXPECT_TRUE(ParsePayload(InTwoParts(bytes), bytes.size(), &read));
  EXPECT_EQ(read.address(), "10.0.0.7:4000");
  EXPECT_FALSE(ParsePayload(InTwoParts(bytes), bytes.size() - 1, &read));
  EXPECT_FALSE(ParsePayload(InTwoParts("no message"), kMaxGreetingBytes, &read));
}

}  // namespace
}  // namespace gradsync
