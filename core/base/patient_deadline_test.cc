#include "core/base/patient_deadline.h"

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr absl::Duration kSecond = absl::Seconds(1);

TEST(PatientDeadlineTest, PassesInTimeForAProcessThatRuns) {
  const MonotonicTime start = MonotonicTime::Now();
  PatientDeadline patience(Deadline::At(start + 10 * kSecond));
  int looks = 0;
  MonotonicTime now;
  do {
    now = patience.next_look().time() + absl::Milliseconds(100);
    ++looks;
  } while (!patience.PassedAt(now));
  EXPECT_LT(now, start + 11 * kSecond);
  EXPECT_GE(looks, 9);
}

TEST(PatientDeadlineTest, APauseMovesIt) {
  const MonotonicTime start = MonotonicTime::Now();
  PatientDeadline patience(Deadline::At(start + 10 * kSecond));
  EXPECT_FALSE(patience.PassedAt(start + absl::Hours(1)));  // stopped within the first second
  MonotonicTime now = start + absl::Hours(1);
  int looks = 0;
  while (!patience.PassedAt(now)) {
    now = patience.next_look().time();
    ++looks;
  }
  EXPECT_GE(now, start + absl::Hours(1) + 8 * kSecond);
  EXPECT_LE(now, start + absl::Hours(1) + 11 * kSecond);
}

TEST(PatientDeadlineTest, WhoIsWokenEarlyIsNotLate) {
  const MonotonicTime start = MonotonicTime::Now();
  PatientDeadline patience(Deadline::At(start + kSecond));
  EXPECT_FALSE(patience.PassedAt(start + absl::Milliseconds(1)));
  EXPECT_FALSE(patience.PassedAt(start + absl::Milliseconds(2)));
  EXPECT_TRUE(patience.PassedAt(start + kSecond));
}

TEST(PatientDeadlineTest, OneThatHasPassedIsOverAtTheFirstLook) {
  EXPECT_TRUE(PatientDeadline(Deadline::Now()).Passed());
}

TEST(PatientDeadlineTest, NeverStaysNever) {
  PatientDeadline patience(Deadline::Never());
  EXPECT_TRUE(patience.next_look().never());
  EXPECT_FALSE(patience.Passed());
}

}  // namespace
}  // namespace gradsync
