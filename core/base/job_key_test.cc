#include "core/base/job_key.h"

#include "core/base/no_descriptors_left.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::MatchesRegex;

TEST(JobKeyTest, KeysAreHexadecimalAndNoTwoAreEqual) {
  const std::string first = NewJobKey();
  EXPECT_THAT(first, MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(NewJobKey(), first);
  EXPECT_EQ(CheckJobKey("key", first), absl::OkStatus());
}

// Whoever asks for a challenge then got UNIMPLEMENTED, from gRPC, which had caught the exception.
TEST(JobKeyTest, AProcessWithoutDescriptorsHasKeysToo) {
  NewJobKey();  // the undefined behaviour sanitizer opens a pipe at what it sees first
  const NoDescriptorsLeft none;
  EXPECT_THAT(NewJobKey(), MatchesRegex("[0-9a-f]{32}"));
}

}  // namespace
}  // namespace gradsync
