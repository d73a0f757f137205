#include "core/base/grpc_conversions.h"

#include <grpc/support/time.h>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(GrpcStatusTest, EveryCodeAndItsMessageSurviveTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    absl::Status before(static_cast<absl::StatusCode>(code), "rank 3: no answer");
    grpc::Status wire = ToGrpcStatus(before);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(ToAbslStatus(wire), before);
  }
}

TEST(GrpcStatusTest, NamesMeanTheSame) {
  EXPECT_EQ(ToAbslStatus(grpc::Status(grpc::StatusCode::DATA_LOSS, "x")), absl::DataLossError("x"));
  EXPECT_EQ(ToAbslStatus(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "x")),
            absl::UnauthenticatedError("x"));
  EXPECT_EQ(ToAbslStatus(grpc::Status(grpc::StatusCode::ABORTED, "x")), absl::AbortedError("x"));
}

TEST(GrpcStatusTest, ACodeThatIsNotDefinedBecomesUnknown) {
  // Numbers that the type can hold, though they have no name.
  for (int code : {-1, 17, 31}) {
    absl::Status status = ToAbslStatus(grpc::Status(static_cast<grpc::StatusCode>(code), "odd"));
    EXPECT_EQ(status, absl::UnknownError("odd")) << code;
  }
}

absl::Duration FromNow(gpr_timespec time) {
  const gpr_timespec left = gpr_time_sub(time, gpr_now(GPR_CLOCK_MONOTONIC));
  return absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec);
}

TEST(GrpcDeadlineTest, IsAsFarAwayByTheMonotonicClock) {
  const gpr_timespec time = GrpcDeadline(Deadline::In(absl::Hours(1)));
  EXPECT_EQ(time.clock_type, GPR_CLOCK_MONOTONIC);
  EXPECT_LE(FromNow(time), absl::Hours(1));
  EXPECT_GT(FromNow(time), absl::Minutes(59));
}

TEST(GrpcDeadlineTest, HasPassedWhereTheDeadlineHas) {
  EXPECT_LE(FromNow(GrpcDeadline(Deadline::Now())), absl::ZeroDuration());
}

TEST(GrpcDeadlineTest, NeverIsInfinite) {
  const gpr_timespec time = GrpcDeadline(Deadline::Never());
  EXPECT_EQ(gpr_time_cmp(time, gpr_inf_future(GPR_CLOCK_MONOTONIC)), 0);
  const gpr_timespec far = GrpcDeadline(Deadline::In(absl::Hours(1e12)));
  EXPECT_GT(FromNow(far), absl::Hours(24 * 365));
}

}  // namespace
}  // namespace gradsync
