#include "core/group/drain.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int64_t kForEver = int64_t{1} << 40;

// Steps that a rank can finish only when all ranks have begun them, as under bsp.
class Lockstep {
 public:
  explicit Lockstep(int ranks) : begun_(ranks, 0) {}

  void Step(int rank, int64_t step) {
    MutexLock lock(&mutex_);
    begun_[rank] = step;
    changed_.SignalAll();
    while (*std::min_element(begun_.begin(), begun_.end()) < step) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<int64_t> begun_ ABSL_GUARDED_BY(mutex_);
};

WorkerGroup Rank(const std::shared_ptr<KeyValueStore>& store, int rank, int ranks) {
  WorkerGroup group;
  group.rank = rank;
  group.world_size = ranks;
  group.run_id = "run";
  group.store = store;
  group.timeout = absl::Seconds(60);
  return group;
}

struct Stop {
  int64_t after = 0;
  std::string why;
};

// Trains until somebody asks; rank `asker` asks itself before it would begin step `when`.
std::vector<Stop> Train(int ranks, int asker, int64_t when, bool lockstep, int64_t first_step = 1) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  Lockstep steps(ranks);
  std::vector<Stop> stops(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Drain drain(Rank(store, rank, ranks), first_step, nullptr);
      for (int64_t step = first_step; step < kForEver; ++step) {
        if (rank == asker && step == when) {
          EXPECT_EQ(drain.Ask(SIGTERM), absl::OkStatus());
        }
        const absl::StatusOr<bool> stop = drain.StopBefore(step);
        ASSERT_TRUE(stop.ok()) << stop.status();
        if (*stop) {
          stops[rank] = {step - 1, drain.request().ToString()};
          // As at the end of a job, nobody leaves before all have come.
          steps.Step(rank, kForEver);
          return;
        }
        if (lockstep) steps.Step(rank, step);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return stops;
}

TEST(DrainTest, RanksInLockstepStopAfterTheSameStepWhoeverWasAsked) {
  for (const int ranks : {1, 2, 5}) {
    for (int asker = 0; asker < ranks; ++asker) {
      const std::vector<Stop> stops = Train(ranks, asker, /*when=*/20, /*lockstep=*/true);
      for (const Stop& stop : stops) {
        EXPECT_EQ(stop.after, stops[0].after);
        EXPECT_EQ(stop.why, absl::StrCat("SIGTERM to rank ", asker));
      }
      // Another may have begun the next.
      EXPECT_GE(stops[0].after, 19);
      EXPECT_LE(stops[0].after, 20);
    }
  }
}

TEST(DrainTest, RanksThatDoNotWaitForEachOtherStopAfterTheStepOfTheOneThatIsAhead) {
  const std::vector<Stop> stops = Train(3, /*asker=*/1, /*when=*/1000, /*lockstep=*/false);
  for (const Stop& stop : stops) EXPECT_EQ(stop.after, stops[0].after);
  EXPECT_GE(stops[0].after, 999);
}

TEST(DrainTest, AJobThatIsAskedBeforeItsFirstStepTrainsNone) {
  for (const int64_t first : {1, 8}) {
    for (const Stop& stop : Train(1, 0, /*when=*/first, true, first)) {
      EXPECT_EQ(stop.after, first - 1);
    }
  }
}

TEST(DrainTest, ARankWithoutAStoreAsksOnlyItself) {
  Drain drain(WorkerGroup(), 1, nullptr);
  EXPECT_FALSE(drain.StopBefore(1).value());
  ASSERT_EQ(drain.Ask(SIGINT), absl::OkStatus());
  EXPECT_TRUE(drain.StopBefore(2).value());
  EXPECT_EQ(drain.request().ToString(), "SIGINT to rank 0");
  EXPECT_EQ(drain.request().signal, SIGINT);
}

TEST(DrainTest, TheFirstRequestCountsAlsoThatOfAServer) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  const WorkerGroup group = Rank(store, 0, 1);
  const auto asked = AskToDrain(group, {SIGTERM, "server 0 (a:1)"}, Deadline::In(group.timeout));
  ASSERT_TRUE(asked.ok()) << asked.status();
  Drain drain(group, 1, nullptr);
  ASSERT_EQ(drain.Ask(SIGINT), absl::OkStatus());
  EXPECT_TRUE(drain.StopBefore(1).value());
  EXPECT_EQ(drain.request().ToString(), "SIGTERM to server 0 (a:1)");
}

TEST(DrainTest, ARankThatDoesNotAnswerEndsTheWaitAtTheDeadlineAndAFailedGroupAtOnce) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  WorkerGroup group = Rank(store, 0, 2);
  group.timeout = absl::Milliseconds(50);
  Drain late(group, 1, nullptr);
  ASSERT_EQ(late.Ask(SIGTERM), absl::OkStatus());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.StopBefore(1).status()));

  group.attempt = 1;
  group.timeout = absl::Hours(1);
  Drain failed(group, 1, nullptr);
  ASSERT_EQ(failed.Ask(SIGTERM), absl::OkStatus());
  ASSERT_TRUE(store->Fail(group.JobKey(""), "rank 1 lost", Deadline::In(group.timeout)).ok());
  const absl::Status status = failed.StopBefore(1).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 lost")) << status;
}

}  // namespace
}  // namespace gradsync
