#include "tests/staleness_job.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"
#include "ps_server/event_check.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"

namespace gradsync {
namespace {

// A bucket smaller than the number of workers, one of several stripes, one with empty chunks.
Plan SmallPlan(int world_size) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {3}, {1}, 0}, {"b", {200}, {1}, 0}, {"c", {40}, {1}, 0}},
                            {{0}, {1}, {2}}, optimizer, world_size, /*chunk_bytes=*/64);
}

// Long enough for a thousand steps on a busy machine.
Deadline Late() { return Deadline::In(absl::Minutes(5)); }

// 1/n of a gradient.
float Share(uint64_t seed, int rank, int64_t step, int bucket, int64_t element) {
  const uint64_t mixed = seed * 7 + static_cast<uint64_t>(rank) * 5 + step * 3 + bucket + element;
  return static_cast<float>(mixed % 4);
}

class Logs {
 public:
  Logs(int servers, int world_size, Consistency consistency) {
    for (int i = 0; i < servers; ++i) checks_.emplace_back(world_size, consistency);
  }

  void Add(int server, const ServerEvent& event) {
    MutexLock lock(&mutex_);
    if (first_error_.ok()) first_error_ = checks_[server].Add(event);
  }

  StalenessResult Conclude(const std::vector<int64_t>& steps) {
    MutexLock lock(&mutex_);
    EXPECT_EQ(first_error_, absl::OkStatus());
    StalenessResult result;
    for (const EventCheck& check : checks_) {
      EXPECT_EQ(check.CheckSteps(steps), absl::OkStatus());
      result.max_staleness = std::max(result.max_staleness, check.max_staleness());
      result.waits += check.waits();
    }
    return result;
  }

 private:
  Mutex mutex_;
  std::vector<EventCheck> checks_ ABSL_GUARDED_BY(mutex_);
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

class Job {
 public:
  explicit Job(const StalenessJob& job)
      : job_(job),
        world_size_(static_cast<int>(job.steps.size())),
        consistency_(*ParseConsistency(job.consistency)),
        plan_(SmallPlan(world_size_)),
        logs_(job.servers, world_size_, consistency_),
        begun_(world_size_) {}

  StalenessResult Run() {
    PsOptions base;
    base.update_site = UpdateSite::kOwner;
    base.consistency = consistency_;
    base.connections = job_.connections;
    base.lead = job_.lead;
    PsGroup group(job_.link, world_size_, job_.servers, base,
                  [this](int server, const ServerEvent& event) { logs_.Add(server, event); });
    std::vector<Staleness> staleness(world_size_);
    RunRanks(world_size_, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = group.Worker(rank);
      RunRank(*sync, rank);
      staleness[rank] = sync->staleness();
      EXPECT_EQ(sync->Shutdown(Late()), absl::OkStatus());
    });
    for (int i = 0; i < job_.servers; ++i) EXPECT_EQ(group.server(i).Wait(), absl::OkStatus());
    std::vector<int64_t> steps = job_.steps;
    for (int64_t& each : steps) each *= job_.phases;
    StalenessResult result = logs_.Conclude(steps);
    AddUp(staleness, steps, &result);
    return result;
  }

 private:
  void RunRank(GradientSync& sync, int rank) {
    absl::StatusOr<std::vector<GradBucket>> buckets = sync.Bind(plan_, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    ASSERT_EQ(sync.BroadcastParameters(Soon()), absl::OkStatus());
    int64_t step = 0;
    for (int phase = 1; phase <= job_.phases; ++phase) {
      for (int64_t i = 0; i < job_.steps[rank]; ++i) {
        if (job_.pause) job_.pause(rank, step + 1);
        ++begun_[rank];
        ASSERT_NO_FATAL_FAILURE(Step(sync, *buckets, rank, ++step));
        if (job_.phases == 1) ExpectNobodyIsFarBehind(step);
      }
      if (job_.phases == 1) begun_[rank] = kDone;
      ASSERT_EQ(sync.Settle(Late()), absl::OkStatus());
      ExpectAllGradientsOnce(*buckets, phase);
    }
  }

  void Step(GradientSync& sync, std::vector<GradBucket>& buckets, int rank, int64_t number) {
    StepOptions step;
    step.step = number;
    step.lr = 1;
    std::vector<SyncHandle> handles;
    for (size_t b = 0; b < buckets.size(); ++b) {
      float* const grad = buckets[b].grad.floats();
      for (int64_t e = 0; e < buckets[b].grad.numel; ++e) {
        grad[e] = world_size_ * Share(job_.seed, rank, number, static_cast<int>(b), e);
      }
      handles.push_back(sync.Launch(step, static_cast<int>(b)));
    }
    for (const SyncHandle& handle : handles) ASSERT_EQ(handle.Wait(Late()), absl::OkStatus());
  }

  void ExpectNobodyIsFarBehind(int64_t finished) {
    if (consistency_.kind == Consistency::Kind::kAsp) return;
    for (int other = 0; other < world_size_; ++other) {
      EXPECT_GE(begun_[other], finished - consistency_.bound) << "rank " << other;
    }
  }

  void ExpectAllGradientsOnce(const std::vector<GradBucket>& buckets, int phases) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      const float* const param = buckets[b].param.floats();
      for (const PlacedTensor& placed : plan_.buckets()[b].tensors) {
        const int64_t end = placed.offset + plan_.tensors()[placed.tensor].numel();
        for (int64_t e = placed.offset; e < end; ++e) {
          ASSERT_EQ(param[e], Expected(static_cast<int>(b), e, phases)) << "element " << e;
        }
      }
    }
  }

  float Expected(int bucket, int64_t element, int phases) const {
    double sum = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      for (int64_t s = 1; s <= phases * job_.steps[rank]; ++s) {
        sum += Share(job_.seed, rank, s, bucket, element);
      }
    }
    return static_cast<float>(-sum);
  }

  void AddUp(const std::vector<Staleness>& staleness, const std::vector<int64_t>& steps,
             StalenessResult* result) {
    for (int rank = 0; rank < world_size_; ++rank) {
      int64_t counted = 0;
      EXPECT_LE(staleness[rank].max(), result->max_staleness);
      for (size_t s = 0; s < staleness[rank].histogram.size(); ++s) {
        if (s >= result->histogram.size()) result->histogram.resize(s + 1);
        result->histogram[s] += staleness[rank].histogram[s];
        counted += staleness[rank].histogram[s];
      }
      EXPECT_EQ(counted, steps[rank]);
    }
    EXPECT_EQ(static_cast<int64_t>(result->histogram.size()) - 1, result->max_staleness);
  }

  static constexpr int64_t kDone = int64_t{1} << 40;

  const StalenessJob& job_;
  const int world_size_;
  const Consistency consistency_;
  const Plan plan_;
  Logs logs_;
  std::vector<std::atomic<int64_t>> begun_;  // by rank: steps
};

}  // namespace

StalenessResult RunStalenessJob(const StalenessJob& job) { return Job(job).Run(); }

}  // namespace gradsync
