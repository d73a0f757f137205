#include "core/base/suspicion.h"

#include <string>

#include "core/base/culprit.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

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
