#include "ps_server/step_progress.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

const ServerPushOrder kOrder({{0, 0}, {0, 2}, {1, 1}, {1, 3}, {2, 0}}, /*world_size=*/1);

void ExpectInvalid(const absl::Status& status, absl::string_view text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
}

TEST(PushSequence, AConnectionCarriesEveryCthChunkInEachStep) {
  PushSequence sequence(&kOrder, 0, 1, 2);
  for (int64_t step : {1, 2, 7}) {
    EXPECT_EQ(sequence.Push({0, 2}, step), absl::OkStatus());
    EXPECT_EQ(sequence.Push({1, 3}, step), absl::OkStatus());
  }
}

TEST(PushSequence, AnotherChunkIsRefusedWithExpectedAndFound) {
  PushSequence sequence(&kOrder, 0, 0, 2);
  EXPECT_EQ(sequence.Push({0, 0}, 1), absl::OkStatus());
  ExpectInvalid(sequence.Push({2, 0}, 1), "expected bucket 1 slot 1");
  ExpectInvalid(sequence.Push({2, 0}, 1), "found bucket 2 slot 0");
}

TEST(PushSequence, AStepEndsBeforeTheNextBegins) {
  PushSequence sequence(&kOrder, 0, 0, 2);
  EXPECT_EQ(sequence.Push({0, 0}, 1), absl::OkStatus());
  ExpectInvalid(sequence.Push({1, 1}, 2), "found step 2");
  EXPECT_EQ(sequence.Push({1, 1}, 1), absl::OkStatus());
  EXPECT_EQ(sequence.Push({2, 0}, 1), absl::OkStatus());
  ExpectInvalid(sequence.Push({0, 0}, 1), "found step 1");
}

TEST(PushSequence, AConnectionBeyondTheOrderCarriesNothing) {
  PushSequence sequence(&kOrder, 0, 6, 8);
  ExpectInvalid(sequence.Push({0, 0}, 1), "expected nothing");
}

TEST(PushSequence, ParametersComeWholeAndBetweenSteps) {
  PushSequence sequence(&kOrder, 0, 1, 2);
  EXPECT_EQ(sequence.Parameters({0, 2}), absl::OkStatus());
  ExpectInvalid(sequence.Push({0, 2}, 1), "rest of the parameters");
  EXPECT_EQ(sequence.Parameters({1, 3}), absl::OkStatus());
  EXPECT_EQ(sequence.Push({0, 2}, 1), absl::OkStatus());
  ExpectInvalid(sequence.Parameters({0, 2}), "rest of step 1");
}

}  // namespace
}  // namespace gradsync
