// Many shapes of job over a link that delays and reorders: nothing may hang, no bit may differ.

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "links/in_process_stream.h"
#include "plan/shard_map.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/reference.h"

namespace gradsync {
namespace {

struct Job {
  explicit Job(uint64_t seed) : random(seed) {
    world_size = 1 + static_cast<int>(random() % 6);
    servers = 1 + static_cast<int>(random() % 4);
    base.update_site = random() % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
    base.connections = 1 + static_cast<int>(random() % 4);
    base.credit = 1 + static_cast<int>(random() % 9);
    if (random() % 2 == 0) {
      for (int i = 0; i < servers; ++i) base.weights.push_back(1 + random() % 5);
    }
    max_norm = random() % 3 == 0 ? 0.5 : 0;
    link.split_payloads = random() % 2 == 0;
    link.max_delay = absl::Microseconds(random() % 300);
    link.seed = seed;
    plan = MakePlan();
  }

  Plan MakePlan() {
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    optimizer.groups[0].momentum = 0.9;
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<int>> buckets;
    const int count = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < count; ++i) {
      const int64_t numel = 1 + static_cast<int64_t>(random() % (i % 2 == 0 ? 3000 : 20));
      tensors.push_back({"t" + std::to_string(i), {numel}, {1}, 0});
      buckets.push_back({i});
    }
    return *Plan::FromBuckets(tensors, buckets, optimizer, world_size,
                              64 * static_cast<int64_t>(1 + random() % 8));
  }

  std::mt19937_64 random;
  int world_size;
  int servers;
  PsOptions base;
  double max_norm;
  InProcessLinkOptions link;
  Plan plan;
};

FlatValues Read(const std::vector<GradBucket>& buckets, at::Tensor GradBucket::*which) {
  FlatValues values;
  for (const GradBucket& bucket : buckets) {
    const float* data = (bucket.*which).data_ptr<float>();
    values.emplace_back(data, data + bucket.grad.numel());
  }
  return values;
}

void Write(const FlatValues& values, std::vector<GradBucket>& buckets,
           at::Tensor GradBucket::*which) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::copy(values[b].begin(), values[b].end(), (buckets[b].*which).data_ptr<float>());
  }
}

void RunJob(uint64_t seed) {
  SCOPED_TRACE(seed);
  constexpr int kSteps = 3;
  const Job job(seed);
  const Plan& plan = job.plan;
  std::vector<FlatValues> means(1);
  std::vector<FlatValues> params = {RandomValues(plan, seed)};
  ReferenceOptimizer reference(plan);
  const auto gradient = [&](int rank, int64_t step) {
    return RandomValues(plan, 1000 * seed + 10 * step + rank);
  };
  for (int64_t s = 1; s <= kSteps; ++s) {
    std::vector<FlatValues> all;
    for (int rank = 0; rank < job.world_size; ++rank) all.push_back(gradient(rank, s));
    means.push_back(ReferenceMean(plan, all, 1));
    params.push_back(params.back());
    StepOptions step;
    step.step = s;
    step.lr = 0.1;
    step.max_norm = job.max_norm;
    reference.Apply(step, means.back(), &params.back());
  }
  PsGroup group(NewInProcessLink(job.link), job.world_size, job.servers, job.base);
  RunRanks(job.world_size, [&](int rank) {
    SCOPED_TRACE(seed);
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    absl::StatusOr<std::vector<GradBucket>> buckets = sync->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    if (rank == 0) Write(params[0], *buckets, &GradBucket::param);
    ASSERT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    for (int64_t s = 1; s <= kSteps; ++s) {
      Write(gradient(rank, s), *buckets, &GradBucket::grad);
      ASSERT_EQ(RunStep(*sync, plan, s, job.max_norm), absl::OkStatus());
      if (job.base.update_site == UpdateSite::kOwner) {
        ASSERT_EQ(Read(*buckets, &GradBucket::param), params[s]);
      } else {
        ASSERT_EQ(Read(*buckets, &GradBucket::grad), means[s]);
      }
    }
    // Every byte is pushed once and pulled once, per step.
    const int64_t bytes = kSteps * plan.total_bytes();
    EXPECT_EQ(sync->wire_stats().tx_bytes, bytes + (rank == 0 ? plan.total_bytes() : 0));
    EXPECT_EQ(sync->wire_stats().rx_bytes, bytes + (rank == 0 ? 0 : plan.total_bytes()));
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
  for (int i = 0; i < job.servers; ++i) EXPECT_EQ(group.server(i).Wait(), absl::OkStatus());
}

TEST(PsStress, NoShapeOfJobHangsOrDiffersInOneBit) {
  for (uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) RunJob(seed);
}

}  // namespace
}  // namespace gradsync
