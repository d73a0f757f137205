#include "core/plan/stripes.h"

#include <set>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(StripesTest, ChunksCoverEveryElementOnceInOrder) {
  for (int n = 1; n <= 17; ++n) {
    for (int64_t numel : {1, 5, 16, 17, 1000, 16384, 100003}) {
      for (int64_t chunk : {16, 128, 65536}) {
        const StripeLayout layout(numel, n, chunk);
        int64_t next = 0;
        for (int slot = 0; slot < layout.slots(); ++slot) {
          const ElementRange range = layout.range(slot);
          ASSERT_EQ(range.begin, next);
          ASSERT_GE(range.end, range.begin);
          ASSERT_LE(range.size(), chunk);
          next = range.end;
        }
        ASSERT_EQ(next, numel) << "n=" << n << " chunk=" << chunk;
      }
    }
  }
}

TEST(StripesTest, ChunksOfABucketHaveEqualSizeButAtTheTail) {
  const StripeLayout layout(100003, 4, 1024);
  EXPECT_EQ(layout.stripes(), 25);
  EXPECT_EQ(layout.chunk_elements(), 1008);
  int short_ones = 0;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.range(slot).size() != layout.chunk_elements()) ++short_ones;
  }
  EXPECT_EQ(short_ones, 1);
}

TEST(StripesTest, ABucketSmallerThanTheGroupHasEmptyChunks) {
  const StripeLayout layout(20, 8, 256);
  EXPECT_EQ(layout.slots(), 8);
  EXPECT_EQ(layout.range(0), (ElementRange{0, 16}));
  EXPECT_EQ(layout.range(1), (ElementRange{16, 20}));
  for (int slot = 2; slot < 8; ++slot) EXPECT_TRUE(layout.range(slot).empty());
}

TEST(StripesTest, NoChunkIsMadeSmallerThanASixteenthSoThatManyWorkersHaveFewChunks) {
  for (int n : {2, 16, 256, 4096}) {
    const StripeLayout layout(100'000, n, 16'384);
    int chunks = 0;
    for (int slot = 0; slot < layout.slots(); ++slot) chunks += !layout.range(slot).empty();
    EXPECT_LE(chunks, 98) << n;
    if (n >= 256) {
      EXPECT_EQ(layout.chunk_elements(), 1024) << n;
    }
  }
}

TEST(StripesTest, AnEmptyBucketHasNoStripes) { EXPECT_EQ(StripeLayout(0, 4, 1024).slots(), 0); }

TEST(StripesTest, FoldStartsAfterTheChunksNumberAndEndsOnIt) {
  EXPECT_EQ(FoldRank(2, 0, 4), 3);
  EXPECT_EQ(FoldRank(2, 1, 4), 0);
  EXPECT_EQ(FoldRank(2, 3, 4), 2);
}

TEST(StripesTest, FoldPositionInvertsFoldRank) {
  for (int n = 1; n <= 17; ++n) {
    for (int chunk = 0; chunk < n; ++chunk) {
      for (int position = 0; position < n; ++position) {
        EXPECT_EQ(FoldPosition(chunk, FoldRank(chunk, position, n), n), position);
      }
    }
  }
}

TEST(StripesTest, RanksSendSoThatContributionsArriveAsTheyAreFolded) {
  for (int n = 1; n <= 17; ++n) {
    for (int position = 0; position < n; ++position) {
      std::set<int> chunks;
      for (int rank = 0; rank < n; ++rank) {
        const int chunk = SendChunk(rank, position, n);
        chunks.insert(chunk);
        EXPECT_EQ(FoldPosition(chunk, rank, n), position);
      }
      EXPECT_EQ(static_cast<int>(chunks.size()), n) << "two ranks send the same chunk at once";
    }
  }
}

TEST(StripesTest, DefaultChunkIsARoundedShareOfTheBucketWithinBounds) {
  EXPECT_EQ(DefaultChunkBytes(1 << 20, 2), 64 << 10);
  EXPECT_EQ(DefaultChunkBytes(25 << 20, 2), 800 << 10);
  EXPECT_EQ(DefaultChunkBytes(25 << 20, 8), 200 << 10);
  EXPECT_EQ(DefaultChunkBytes(int64_t{400} << 20, 1), 1 << 20);
}

TEST(StripesTest, BetweenHostsAStripeIsAnEightiethOfAllGradientsWithinBounds) {
  EXPECT_EQ(NetworkChunkBytes(10'000'000, 3), 40 << 10);
  EXPECT_EQ(NetworkChunkBytes(45'000'000, 8), 68 << 10);
  EXPECT_EQ(NetworkChunkBytes(10'000'000, 8), 32 << 10);
  EXPECT_EQ(NetworkChunkBytes(1, 4096), 32 << 10);
  EXPECT_EQ(NetworkChunkBytes(45'000'000, 3), 96 << 10);
  EXPECT_EQ(NetworkChunkBytes(int64_t{100} << 30, 64), 96 << 10);
}

}  // namespace
}  // namespace gradsync
