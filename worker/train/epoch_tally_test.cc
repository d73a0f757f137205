#include "worker/train/epoch_tally.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "core/group/side_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

TEST(EpochTallyTest, MeansAreOverSamplesAndNotOverSteps) {
  EpochTally tally;
  tally.Add(/*epoch=*/1, /*loss=*/2, /*correct=*/1, /*samples=*/6);
  tally.Add(1, 4, 2, 2);
  EXPECT_EQ(tally.Current().epoch, 1);
  EXPECT_EQ(tally.Current().steps, 2);
  EXPECT_EQ(tally.Current().samples, 8);
  EXPECT_DOUBLE_EQ(tally.Current().loss, 2.5);
  EXPECT_DOUBLE_EQ(tally.Current().accuracy, 3. / 8);
  tally.Add(2, 1, 3, 3);
  EXPECT_EQ(tally.Current().epoch, 2);
  EXPECT_DOUBLE_EQ(tally.Current().accuracy, 1);
}

TEST(EpochTallyTest, GlobalFiguresAreThoseOfAllWorkersSamples) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  std::vector<std::vector<EpochPoint>> points(2);
  const auto share = [&](int rank) {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = 2;
    group.run_id = "tally";
    group.store = store;
    SideChannel side_channel(group, "test");
    EpochTally tally;
    tally.Add(1, /*loss=*/rank == 0 ? 1 : 3, /*correct=*/rank == 0 ? 5 : 0, /*samples=*/5);
    tally.Add(2, 2, 1, rank == 0 ? 1 : 3);
    points[rank] = tally.Share(side_channel, Soon()).value();
  };
  std::thread other(share, 1);
  share(0);
  other.join();
  for (int rank : {0, 1}) {
    ASSERT_EQ(points[rank].size(), 2u);
    EXPECT_DOUBLE_EQ(points[rank][0].global_loss, 2);
    EXPECT_DOUBLE_EQ(points[rank][0].global_accuracy, 0.5);
    EXPECT_DOUBLE_EQ(points[rank][1].global_accuracy, 0.5);
    EXPECT_DOUBLE_EQ(points[rank][0].accuracy, rank == 0 ? 1 : 0);
  }
}

}  // namespace
}  // namespace gradsync
