#include "core/base/errors.h"

#include <string>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(CulpritTest, AMessageThatBeginsWithAProcessOrALinkNamesACulprit) {
  for (const char* message :
       {"rank 0", "rank 12 lost: no sign of life for 10s", "rank 3 (10.0.0.3) lost: closed",
        "ranks 1, 2 of 4 have not come", "server 0 (10.0.0.7:4000) stuck",
        "link rank 0 - rank 1: nothing comes through", "link rank 2 - server 1 (10.0.0.7:4000)",
        "link server 0 (a:1) - rank 1"}) {
    EXPECT_TRUE(BeginsWithCulprit(message)) << message;
  }
}

TEST(CulpritTest, OtherMessagesNameNobody) {
  for (const char* message :
       {"", "rank", "rank ", "rank x", "ranks", "rank 1st", "server 0", "server 10.0.0.7:4000 lost",
        "the stream from rank 1 ended", "no space on rank 1", "link ", "links rank 0 - rank 1"}) {
    EXPECT_FALSE(BeginsWithCulprit(message)) << message;
  }
}

TEST(CulpritTest, ALineIsCutBeforeItsCulpritBehindAProgramAndACode) {
  EXPECT_EQ(FromCulprit("127.0.0.1:4000: rank 0 failed first: x"), "rank 0 failed first: x");
  EXPECT_EQ(FromCulprit("worker: UNAVAILABLE: rank 1 lost: gone"), "rank 1 lost: gone");
  EXPECT_EQ(FromCulprit("ps_server: ABORTED: link rank 0 - rank 1"), "link rank 0 - rank 1");
  EXPECT_EQ(FromCulprit("rank 1 lost"), "rank 1 lost");
}

TEST(CulpritTest, ALineOfAnotherKindStaysWhole) {
  for (const char* line : {"", "worker: --steps: expected a number", "worker: no: such: rank 1",
                           "worker: cannot open rank 1: rank 1", "a line without colon"}) {
    EXPECT_EQ(FromCulprit(line), line);
  }
}

TEST(SuspicionTest, AStatusIsCertainUnlessItIsSuspected) {
  const absl::Status certain = absl::UnavailableError("gone");
  EXPECT_EQ(PatienceWith(certain), absl::ZeroDuration());
  EXPECT_EQ(PatienceWith(absl::OkStatus()), absl::ZeroDuration());
  const absl::Status suspected = Suspicion(certain, absl::Milliseconds(1750));
  EXPECT_EQ(PatienceWith(suspected), absl::Milliseconds(1750));
  EXPECT_EQ(suspected.code(), certain.code());
  EXPECT_EQ(suspected.message(), certain.message());
  EXPECT_EQ(Certain(suspected), certain);
  EXPECT_EQ(Suspicion(certain, absl::ZeroDuration()), certain);
}

TEST(SuspicionTest, ACutLinkIsNamedFirstAndSuspectedAsLong) {
  const absl::Status deaf =
      CutLink("rank 3", "rank 4",
              Suspicion(absl::ResourceExhaustedError("its host answers"), absl::Seconds(1)));
  EXPECT_EQ(deaf.message(), "rank 4: its host answers");
  EXPECT_EQ(PatienceWith(deaf), absl::Seconds(1));
  const absl::Status cut = CutLink("rank 3", "server 0 (10.0.0.7:4000)",
                                   Suspicion(absl::UnavailableError("silent"), absl::Seconds(2)));
  EXPECT_EQ(cut.message(), "link rank 3 - server 0 (10.0.0.7:4000): silent");
  EXPECT_TRUE(BeginsWithCulprit(cut.message()));
  EXPECT_EQ(PatienceWith(cut), absl::Seconds(2));
}

}  // namespace
}  // namespace gradsync
