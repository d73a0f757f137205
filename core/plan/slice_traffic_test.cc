#include "core/plan/slice_traffic.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int64_t kSamples = 3;

SlicedGpt GptOf(int slices, bool split_sequence) {
  SlicedGpt gpt;
  gpt.slices = slices;
  gpt.split_sequence = split_sequence;
  gpt.layers = 5;
  gpt.width = 24;
  gpt.context = 12;
  return gpt;
}

// 8 bsh (n-1)/n numbers for each layer (arXiv 2104.04473, 3.2), as much for each two sums beside
// them, and those of the loss.
TEST(SliceTrafficTest, BytesAreThoseOfTheFormula) {
  for (int n : {2, 3, 4, 6}) {
    const int64_t bsh = kSamples * 12 * 24, loss = kSamples * 12 * 2;
    const int64_t sums = 2 * bsh * (n - 1) / n;
    const int64_t of_loss = 2 * loss * (n - 1) / n + (n - 1) * loss;
    const SlicedGpt gpt = GptOf(n, /*split_sequence=*/false);
    for (int slice : {0, n - 1}) {
      EXPECT_EQ(SliceTxBytes(gpt, kSamples, false, slice), 4 * (sums * (4 * 5 + 2) + of_loss)) << n;
      // Backward repeats the two sums of forward.
      EXPECT_EQ(SliceTxBytes(gpt, kSamples, true, slice), 4 * (sums * (6 * 5 + 2) + of_loss)) << n;
    }
  }
}

// Sums and gathers of parts are as many bytes as whole sums. Gradients of what all slices have are
// added up besides: four vectors of norms and two biases a layer, the last norm, and the positions.
TEST(SliceTrafficTest, PartsOfSequencesSendTheGradientsOfWhatAllHave) {
  for (int n : {2, 3, 4, 6}) {
    for (bool recomputes : {false, true}) {
      const int64_t shared = 2 * (6 * 24 * 5 + 2 * 24 + 12 * 24) * (n - 1) / n;
      EXPECT_EQ(SliceTxBytes(GptOf(n, true), kSamples, recomputes, 0),
                SliceTxBytes(GptOf(n, false), kSamples, recomputes, 0) + 4 * shared)
          << n;
    }
  }
}

TEST(SliceTrafficTest, OneSliceSendsNothing) {
  EXPECT_EQ(SliceTxBytes(GptOf(1, false), kSamples, true, 0), 0);
}

// Slices that sum what they cannot divide send one number more to some; nobody is left out.
TEST(SliceTrafficTest, PartsThatDifferAddUpToTheWhole) {
  const SliceMeeting sum = {SliceCall::kSum, 14, 1};
  ASSERT_EQ(SliceRounds(sum.call, 4), 2);
  int64_t numbers = 0;
  for (int to = 0; to < 4; ++to) numbers += SliceMessageBytes(sum, 4, 0, 0, to) / 4;
  EXPECT_EQ(numbers, 14);
  EXPECT_EQ(SliceMessageBytes(sum, 4, 1, 2, 0), SliceMessageBytes(sum, 4, 0, 0, 2));
}

TEST(SliceTrafficTest, MeetingsAreInTheOrderInWhichTheyHappen) {
  for (bool split : {false, true}) {
    const SlicedGpt gpt = GptOf(2, split);
    for (int64_t block = 0; block < gpt.blocks(); ++block) {
      for (const auto& meetings :
           {ForwardMeetings(gpt, block, 1), BackwardMeetings(gpt, block, 1)}) {
        double before = 0;
        for (const SliceMeeting& meeting : meetings) {
          EXPECT_GE(meeting.at, before);
          EXPECT_LE(meeting.at, 1);
          before = meeting.at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradsync
