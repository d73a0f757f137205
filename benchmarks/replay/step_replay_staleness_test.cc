// Replayed steps of parameter servers that do not wait for everybody: ranks and servers are threads
// of this process, clocks are simulated.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/replay/step_replay.h"
#include "core/base/credentials.h"
#include "core/group/key_value_store.h"
#include "core/links/in_process_stream.h"
#include "gtest/gtest.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"

namespace gradsync {
namespace {

// Three ranks divide nothing evenly, so that what is verified is rounded.
constexpr int kRanks = 3;
constexpr int kSteps = 12;
constexpr int kBuckets = 2;

proto::StepProfile Profile() {
  return ParseStepProfile(R"({"model": "toy", "forward_us": 100, "backward_us": 200,
                              "tensors": [{"name": "a", "numel": 1000, "ready_us": 200},
                                          {"name": "b", "numel": 1000, "ready_us": 300}]})",
                          "profile")
      .value();
}

// Who has begun which measured step.
class Progress {
 public:
  Progress() : begun_(kRanks) {
    for (auto& steps : begun_) {
      for (int i = 0; i < kSteps; ++i) steps.push_back(std::make_unique<absl::Notification>());
    }
  }

  void Begin(int rank, int step) { begun_[rank][step - 1]->Notify(); }

  // A deadline that only a hang meets: ranks that wait for each other, though they need not.
  void AwaitOthers(int step) {
    for (int rank = 1; rank < kRanks; ++rank) {
      EXPECT_TRUE(begun_[rank][step - 1]->WaitForNotificationWithTimeout(absl::Seconds(30)))
          << "rank " << rank << " has not begun step " << step;
    }
  }

 private:
  std::vector<std::vector<std::unique_ptr<absl::Notification>>> begun_;
};

// Time passes only in sleeps, of which a step has one per bucket and one to the end of backward.
class HookedClock : public ReplayClock {
 public:
  // `begins(step)` is called before a measured step sends anything; steps count from 1.
  explicit HookedClock(std::function<void(int)> begins) : begins_(std::move(begins)) {}

  double Now() override { return now_; }
  void SleepUntil(double us) override {
    if (sleeps_++ % (kBuckets + 1) == 0) begins_(sleeps_ / (kBuckets + 1) + 1);
    now_ = std::max(now_, us);
  }

 private:
  const std::function<void(int)> begins_;
  double now_ = 0;
  int sleeps_ = 0;
};

class Job {
 public:
  explicit Job(const std::string& consistency) : plan_(PlanOf(profile_)) {
    const auto link = NewInProcessLink();
    ServerOptions server;
    server.link = link;
    server.run_id = "test";
    server_ = ParameterServer::Start(server).value();
    ps_.link = link;
    ps_.servers = {server_->address()};
    ps_.update_site = UpdateSite::kOwner;
    ps_.consistency = *ParseConsistency(consistency);
    ps_.group.world_size = kRanks;
    ps_.group.run_id = "test";
    ps_.group.store = NewInMemoryStore();
    ps_.group.address = "127.0.0.1";
    ps_.group.credentials = InsecureCredentials();
  }

  // Rank 0 begins measured step s after the others have begun step `others(s)`.
  std::vector<proto::WorkerMetrics> Run(const std::function<int(int)>& others) {
    std::vector<proto::WorkerMetrics> metrics(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        HookedClock clock([&](int step) {
          progress_.Begin(rank, step);
          if (rank == 0) progress_.AwaitOthers(others(step));
        });
        absl::StatusOr<proto::WorkerMetrics> replayed = Replay(rank, &clock);
        EXPECT_TRUE(replayed.ok()) << replayed.status();
        if (replayed.ok()) metrics[rank] = *std::move(replayed);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return metrics;
  }

 private:
  static Plan PlanOf(const proto::StepProfile& profile) {
    PlanOptions options;
    options.world_size = kRanks;
    options.bucket_bytes = options.first_bucket_bytes = 4096;
    options.chunk_bytes = 640;
    return ProfilePlan(profile, options).value();
  }

  absl::StatusOr<proto::WorkerMetrics> Replay(int rank, ReplayClock* clock) {
    PsOptions ps = ps_;
    ps.group.rank = rank;
    const std::unique_ptr<GradientSync> sync = CreatePsGradientSync(ps).value();
    ReplayOptions options;
    options.rank = rank;
    *options.spec.mutable_profile() = profile_;
    options.spec.set_compute_scale(1);
    options.spec.set_warmup_steps(1);
    options.spec.set_steps(kSteps);
    options.consistency = ps_.consistency;
    int line = 0;
    const auto start = [&] {
      absl::Barrier* const barrier = lines_[line++];
      if (barrier->Block()) delete barrier;
      return absl::OkStatus();
    };
    return ReplaySteps(options, plan_, start, clock, sync.get());
  }

  const proto::StepProfile profile_ = Profile();
  const Plan plan_;
  PsOptions ps_;
  std::unique_ptr<ParameterServer> server_;
  Progress progress_;
  absl::Barrier* const lines_[2] = {new absl::Barrier(kRanks), new absl::Barrier(kRanks)};
};

void ExpectVerifiedAndAlike(const std::vector<proto::WorkerMetrics>& metrics) {
  for (const proto::WorkerMetrics& rank : metrics) {
    EXPECT_EQ(rank.wrong(), 0);
    EXPECT_EQ(rank.params_sha256(), metrics[0].params_sha256());
    EXPECT_EQ(rank.step_end_seconds_size(), kSteps);
    double steps = 0;
    for (double count : rank.staleness_histogram()) steps += count;
    EXPECT_EQ(steps, kSteps + 1);  // the verified one too
  }
}

TEST(StepReplayStalenessTest, UnderSspOthersAreAheadByTheBoundAndNoMore) {
  const auto metrics = Job("ssp:2").Run([](int step) { return std::min(step + 2, kSteps); });
  ExpectVerifiedAndAlike(metrics);
  EXPECT_EQ(metrics[0].consistency(), "ssp:2");
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(metrics[rank].max_staleness(), 2);
}

TEST(StepReplayStalenessTest, UnderAspOthersDoAllTheirStepsBeforeOneHasBegun) {
  const auto metrics = Job("asp").Run([](int) { return kSteps; });
  ExpectVerifiedAndAlike(metrics);
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_GE(metrics[rank].max_staleness(), kSteps - 1);
}

}  // namespace
}  // namespace gradsync
