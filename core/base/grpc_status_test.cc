#include "core/base/grpc_status.h"

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

}  // namespace
}  // namespace gradsync
