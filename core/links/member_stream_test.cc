#include "core/links/member_stream.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/fault_injection.h"
#include "core/links/stream_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::StartsWith;

absl::Status WhyNoConnection(const std::string& address) {
  FailingLink link(absl::DeadlineExceededError("no stream"));
  return ConnectToMember(link, address, 0, nullptr, Deadline::In(absl::Minutes(1)),
                         absl::Milliseconds(1))
      .status();
}

TEST(ConnectToMemberTest, AMemberWhoseHostAnswersIsSuspectedItself) {
  DeafProcess member;
  member.Listen();
  const absl::Status status = WhyNoConnection(member.address());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(PatienceWith(status), absl::ZeroDuration());
  EXPECT_THAT(std::string(CutLink("rank 0", "rank 1", status).message()),
              StartsWith("rank 1: its host answers"));
}

TEST(ConnectToMemberTest, WhereNothingAnswersTheLinkIsSuspected) {
  DeafProcess refuses;
  for (const std::string& address : {refuses.address(), std::string("nowhere.invalid:1")}) {
    const absl::Status status = WhyNoConnection(address);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_GT(PatienceWith(status), absl::ZeroDuration());
    EXPECT_THAT(std::string(CutLink("rank 0", "rank 1", status).message()),
                StartsWith("link rank 0 - rank 1: "));
  }
}

TEST(ConnectToMemberTest, AProcessWithoutDescriptorsBlamesNobodyElse) {
  DeafProcess member;
  member.Listen();
  absl::Status status;
  {
    const NoDescriptorsLeft none;
    status = WhyNoConnection(member.address());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(PatienceWith(status), absl::ZeroDuration());
  EXPECT_THAT(std::string(status.message()),
              StartsWith("no file descriptors left in this process"));
}

TEST(NoConnectionTest, NamesTheMemberButForWhatThisProcessLacks) {
  const absl::Status reset = absl::UnavailableError("connection reset by peer");
  EXPECT_EQ(NoConnection("rank 1", reset),
            absl::UnavailableError("rank 1: connection reset by peer"));
  EXPECT_EQ(NoConnection("rank 1", absl::ResourceExhaustedError("no file descriptors left")),
            absl::ResourceExhaustedError("no connection to rank 1: no file descriptors left"));
  const absl::Status deaf =
      Suspicion(absl::ResourceExhaustedError("its host answers"), absl::Seconds(1));
  EXPECT_EQ(Certain(NoConnection("rank 1", deaf)),
            absl::ResourceExhaustedError("rank 1: its host answers"));
  EXPECT_EQ(PatienceWith(NoConnection("rank 1", deaf)), absl::Seconds(1));
}

absl::Status Lost(const absl::Status& status) {
  return LostStream("rank 0", "rank 1", "host:7", "the stream from it", status);
}

TEST(LostStreamTest, ThePeerIsLostWhetherItClosedOrNot) {
  EXPECT_EQ(Lost(absl::OkStatus()),
            absl::UnavailableError("rank 1 at host:7 lost: the stream from it ended: closed by the "
                                   "peer"));
  EXPECT_EQ(Lost(absl::CancelledError("cancelled here")),
            absl::UnavailableError("rank 1 at host:7 lost: the stream from it ended: cancelled "
                                   "here"));
  EXPECT_EQ(Lost(absl::DataLossError("not a frame")),
            absl::DataLossError("rank 1 at host:7 lost: the stream from it ended: not a frame"));
}

TEST(LostStreamTest, APeerThatKnowsWhoIsToBlameIsBelieved) {
  EXPECT_EQ(Lost(absl::AbortedError("host:7: rank 2 lost: no sign of life")),
            absl::AbortedError("rank 2 lost: no sign of life"));
}

TEST(LostStreamTest, ASilentStreamIsACutLinkWhileNobodyKnowsBetter) {
  const absl::Status cut = Lost(Suspicion(absl::UnavailableError("silent"), absl::Seconds(1)));
  EXPECT_EQ(Certain(cut), absl::UnavailableError("link rank 0 - rank 1: silent"));
  EXPECT_EQ(PatienceWith(cut), absl::Seconds(1));
}

}  // namespace
}  // namespace gradsync
