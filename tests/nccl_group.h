// Ranks over the fakes of NCCL and of the GPU, as threads.

#ifndef GRADSYNC_TESTS_NCCL_GROUP_H_
#define GRADSYNC_TESTS_NCCL_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allreduce/fake_nccl.h"
#include "allreduce/nccl_gradient_sync.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"

namespace gradsync {

inline Plan SomePlan(int world_size) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {3000}, {1}, 0}, {"b", {5}, {1}, 0}}, {{0}, {1}}, optimizer,
                            world_size, 256);
}

inline StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

class NcclGroup {
 public:
  // `owners` as in NcclOptions.
  explicit NcclGroup(int ranks, UpdateSite site = UpdateSite::kWorker,
                     absl::Duration timeout = absl::Seconds(60), int owners = 0)
      : plan(SomePlan(ranks)), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      gpu.push_back(std::make_shared<QueuedGpu>(rank));
      nccl.push_back(std::make_shared<FakeNccl>(network_, gpu.back()));
      NcclOptions options;
      options.group.rank = rank;
      options.group.world_size = ranks;
      options.group.run_id = "nccl";
      options.group.store = store_;
      options.group.timeout = timeout;
      options.update_site = site;
      options.owners = owners;
      options.gpu = gpu.back();
      options.nccl = nccl.back();
      options.abort_bound = absl::Seconds(60);
      options.grace = absl::Seconds(60);
      options_.push_back(options);
    }
  }
  ~NcclGroup() {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (const std::string& misuse : nccl[rank]->misuses()) ADD_FAILURE() << misuse;
      EXPECT_EQ(nccl[rank]->live_communicators(), 0);
      for (const std::string& misuse : gpu[rank]->TakeMisuses()) ADD_FAILURE() << misuse;
      EXPECT_EQ(gpu[rank]->live_objects(), QueuedGpu::kOwnObjects);
    }
  }

  NcclOptions& options(int rank) { return options_[rank]; }
  std::unique_ptr<GradientSync> Create(int rank) const {
    return *CreateNcclGradientSync(options_[rank]);
  }

  // Binds all and runs `body` on each rank's thread.
  void Run(const std::function<void(int, GradientSync&, std::vector<GradBucket>&)>& body) {
    RunRanks(ranks_, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = Create(rank);
      auto buckets = sync->Bind(plan, Soon());
      ASSERT_TRUE(buckets.ok()) << buckets.status();
      body(rank, *sync, *buckets);
    });
  }

  const Plan plan;
  std::vector<std::shared_ptr<QueuedGpu>> gpu;
  std::vector<std::shared_ptr<FakeNccl>> nccl;

 private:
  const int ranks_;
  const std::shared_ptr<FakeNcclNetwork> network_ = std::make_shared<FakeNcclNetwork>();
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::vector<NcclOptions> options_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_NCCL_GROUP_H_
