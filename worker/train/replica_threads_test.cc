#include "worker/train/replica_threads.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/ones.h"
#include "absl/status/status.h"
#include "c10/core/GradMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/compute_options.h"

namespace gradsync {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

void NobodyWaits() {}

TEST(ReplicaThreadsTest, EachReplicaKeepsItsThread) {
  ReplicaThreads threads(3, 3);
  std::vector<std::vector<std::thread::id>> ids(3);
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(threads
                    .Run(
                        3,
                        [&](int r) {
                          ids[r].push_back(std::this_thread::get_id());
                          return absl::OkStatus();
                        },
                        NobodyWaits)
                    .ok());
  }
  std::set<std::thread::id> all;
  for (const auto& own : ids) {
    EXPECT_EQ(own.size(), 4u);
    EXPECT_THAT(own, Each(own[0]));
    all.insert(own[0]);
  }
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(all.count(std::this_thread::get_id()), 0u);
}

TEST(ReplicaThreadsTest, FewerPartsThanReplicasUseTheFirst) {
  ReplicaThreads threads(3, 1);
  for (int active : {2, 0, 3, 1}) {
    std::atomic<int> sum{0};
    ASSERT_TRUE(threads
                    .Run(
                        active,
                        [&](int r) {
                          sum += 1 << r;
                          return absl::OkStatus();
                        },
                        NobodyWaits)
                    .ok());
    EXPECT_EQ(sum, (1 << active) - 1);
  }
}

// Replicas with all threads each would have as many times as many as the worker was given.
TEST(ReplicaThreadsTest, ThreadsAreSharedOut) {
  for (const auto& [count, threads, each] :
       std::vector<std::tuple<int, int, int>>{{2, 4, 2}, {3, 4, 1}, {4, 1, 1}}) {
    ReplicaThreads replicas(count, threads);
    EXPECT_EQ(replicas.threads_each(), each);
    std::vector<int> found(count);
    ASSERT_TRUE(replicas
                    .Run(
                        count,
                        [&](int r) {
                          found[r] = at::get_num_threads();
                          return absl::OkStatus();
                        },
                        NobodyWaits)
                    .ok());
    EXPECT_THAT(found, Each(each));
  }
}

// The one that failed first, since others fail for want of it.
TEST(ReplicaThreadsTest, TheFirstFailureIsTheOneThatIsToldAndEndsTheWaits) {
  ReplicaThreads threads(2, 2);
  std::atomic<bool> gone{false};
  int calls = 0;
  const absl::Status status = threads.Run(
      2,
      [&](int r) -> absl::Status {
        if (r == 1) at::ones({2}).add(at::ones({3}));
        while (!gone) std::this_thread::yield();
        return absl::AbortedError("for want of the other");
      },
      [&] {
        ++calls;
        gone = true;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("replica 1: LibTorch: The size of tensor"));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(threads
                  .Run(
                      2, [](int) { return absl::OkStatus(); }, NobodyWaits)
                  .ok());
}

TEST(ReplicaThreadsTest, LibTorchIsToldWhatTheCallerToldIt) {
  ReplicaThreads threads(1, 1);
  bool recording = true;
  const c10::NoGradGuard no_grad;
  ASSERT_TRUE(threads
                  .Run(
                      1,
                      [&](int) {
                        recording = c10::GradMode::is_enabled();
                        return absl::OkStatus();
                      },
                      NobodyWaits)
                  .ok());
  EXPECT_FALSE(recording);
}

}  // namespace
}  // namespace gradsync
