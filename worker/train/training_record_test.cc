#include "worker/train/training_record.h"

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

using testing::ElementsAre;

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

std::vector<int64_t> KeptOf(int64_t steps, size_t most, int64_t* stride) {
  StepLog log(most);
  for (int64_t step = 1; step <= steps; ++step) {
    LoggedStep logged;
    logged.step = step;
    log.Add(logged);
  }
  EXPECT_EQ(log.added(), steps);
  *stride = log.stride();
  std::vector<int64_t> kept;
  for (const LoggedStep& logged : log.kept()) kept.push_back(logged.step);
  return kept;
}

TEST(StepLogTest, FewStepsAreAllKept) {
  int64_t stride = 0;
  EXPECT_THAT(KeptOf(3, 4, &stride), ElementsAre(1, 2, 3));
  EXPECT_EQ(stride, 1);
}

TEST(StepLogTest, OfManyEverySoManiethIsKept) {
  int64_t stride = 0;
  EXPECT_THAT(KeptOf(4, 4, &stride), ElementsAre(2, 4));
  EXPECT_EQ(stride, 2);
  EXPECT_THAT(KeptOf(7, 4, &stride), ElementsAre(2, 4, 6));
  EXPECT_THAT(KeptOf(8, 4, &stride), ElementsAre(4, 8));
  EXPECT_EQ(stride, 4);
  EXPECT_THAT(KeptOf(15, 4, &stride), ElementsAre(4, 8, 12));
}

TEST(StepLogTest, HowManyAreKeptDoesNotGrowWithTheJob) {
  for (int64_t steps : {1'000, 100'000, 1'000'000}) {
    int64_t stride = 0;
    const std::vector<int64_t> kept = KeptOf(steps, 64, &stride);
    EXPECT_LT(kept.size(), 64u);
    EXPECT_GE(kept.size(), 32u);
    for (size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(kept[i], stride * static_cast<int64_t>(i + 1));
    }
    EXPECT_LT(steps - kept.back(), stride);
  }
}

}  // namespace
}  // namespace gradsync
