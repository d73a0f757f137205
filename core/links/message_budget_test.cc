#include "core/links/message_budget.h"

#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/links/frame_codec.h"
#include "core/links/frame_stream.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr size_t kChunk = 96 << 10;

// How long a message takes on a stream that moves so many bytes a second.
absl::Duration At(double bytes_per_second, size_t bytes) {
  return absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
}

TEST(MessageBudgetTest, OneFrameAtATimeUntilAWriteWasSeen) {
  EXPECT_EQ(MessageBudget().bytes(), 0u);
}

TEST(MessageBudgetTest, TwoFramesFitWhereOneOfTheirSizeWasQuick) {
  const std::string payload(kChunk, 'x');
  OutgoingFrame frames[3];
  for (uint32_t i = 0; i < 3; ++i) {
    frames[i].header.set_slot(i * 1000);
    frames[i].payload = payload;
  }
  MessageBudget budget;
  budget.Written(EncodeFrames(absl::MakeSpan(frames, 1)).Length(), absl::Microseconds(100));
  EXPECT_LE(EncodedBytes(frames[1]) + EncodedBytes(frames[2]), budget.bytes());
}

TEST(MessageBudgetTest, AFastStreamSoonHasTheLargestMessages) {
  MessageBudget budget;
  size_t bytes = kChunk;
  for (int message = 0; message < 4; ++message) {
    budget.Written(bytes, At(2e9, bytes));
    EXPECT_GT(budget.bytes(), bytes);
    bytes = budget.bytes();
  }
  EXPECT_EQ(bytes, kMostBytesTogether);
  budget.Written(bytes, At(2e9, bytes));
  EXPECT_EQ(budget.bytes(), kMostBytesTogether);
}

TEST(MessageBudgetTest, ASlowStreamHasWhatItMovesInTheTime) {
  for (double rate : {1e6, 12.5e6, 40e6}) {
    MessageBudget budget;
    for (int message = 0; message < 3; ++message) budget.Written(kChunk, At(rate, kChunk));
    EXPECT_NEAR(budget.bytes(), rate * absl::ToDoubleSeconds(MessageBudget::kMostTime), 2) << rate;
    EXPECT_LT(budget.bytes(), kChunk);
  }
}

TEST(MessageBudgetTest, ALinkThatCarriesABurstIsSlowFromTheNextMessageOn) {
  MessageBudget budget;
  budget.Written(kChunk, absl::Microseconds(50));
  budget.Written(2 * kChunk, At(12.5e6, 2 * kChunk));
  EXPECT_LT(budget.bytes(), kChunk);
}

TEST(MessageBudgetTest, ShortMessagesTakeNothingFromItOnAFastStream) {
  MessageBudget budget;
  for (int message = 0; message < 5; ++message)
    budget.Written(kMostBytesTogether, At(2e9, 1 << 20));
  budget.Written(20, absl::Microseconds(30));
  EXPECT_EQ(budget.bytes(), kMostBytesTogether);
}

// Messages that take a time of their own, whatever their size, are better large.
TEST(MessageBudgetTest, AFastStreamOfSomeDelayHasLargeMessagesToo) {
  MessageBudget budget;
  size_t bytes = kChunk;
  for (int message = 0; message < 20; ++message) {
    budget.Written(bytes, absl::Milliseconds(1) + At(2e9, bytes));
    bytes = budget.bytes();
  }
  EXPECT_EQ(bytes, kMostBytesTogether);
}

}  // namespace
}  // namespace gradsync
