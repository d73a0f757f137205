#include "core/links/lost_stream.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

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
