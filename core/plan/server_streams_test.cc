#include "core/plan/server_streams.h"

#include "core/plan/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ServerStreamsTest, ServersThatOwnAsMuchAsEachOtherHaveAsManyStreams) {
  EXPECT_THAT(StreamsByServer({0.3, 0.3}, 2), ElementsAre(2, 2));
  EXPECT_THAT(StreamsByServer({1}, 4), ElementsAre(4));
  EXPECT_THAT(StreamsByServer({}, 4), IsEmpty());
  EXPECT_THAT(StreamsByServer(MixedWeights(4, 0), 2), Each(2));
}

TEST(ServerStreamsTest, OtherwiseStreamsAreInProportionToShares) {
  EXPECT_THAT(StreamsByServer(MixedWeights(4, 2), 2), ElementsAre(1, 1, 1, 1, 3, 3));
  EXPECT_THAT(StreamsByServer(MixedWeights(4, 1), 2), ElementsAre(1, 1, 1, 1, 2));
  EXPECT_THAT(StreamsByServer({1, 1000}, 2), ElementsAre(1, 4));
}

}  // namespace
}  // namespace gradsync
