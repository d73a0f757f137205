#include "tests/conformance_group.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_resources.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"

namespace gradsync::conformance {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TensorSpec Tensor(std::string name, int64_t numel, int group) {
  return {std::move(name), {numel}, {1}, group};
}

std::string TestName() {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(test.test_suite_name(), "/", test.name());
}

}  // namespace

OptimizerSpec Momentum() {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kSgd;
  spec.groups.resize(2);
  spec.groups[0].momentum = 0.9;
  spec.groups[0].weight_decay = 5e-4;
  spec.groups[0].nesterov = true;
  spec.groups[1].momentum = 0.9;
  return spec;
}

Plan UnevenPlan(int world_size, OptimizerSpec optimizer) {
  std::vector<TensorSpec> tensors = {Tensor("a", 3, 0), Tensor("b", 5000, 0), Tensor("c", 17, 1),
                                     Tensor("d", 2049, 1), Tensor("e", 40, 0)};
  return *Plan::FromBuckets(tensors, {{0}, {1, 2}, {3}, {4}}, std::move(optimizer), world_size,
                            /*chunk_bytes=*/512);
}

StepOptions Step(int64_t number, double lr) {
  StepOptions step;
  step.step = number;
  step.lr = lr;
  return step;
}

std::vector<FlatValues> Gradients(const Plan& plan, int64_t step) {
  std::vector<FlatValues> all;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    all.push_back(RandomValues(plan, 100 * step + rank + 1));
  }
  return all;
}

Group::Group(const ConformanceCase& config, absl::string_view part)
    : world_size_(config.world_size),
      process_(config.traits.process),
      store_(process_ == nullptr ? NewInMemoryStore() : process_->store),
      run_id_(process_ == nullptr ? "conformance" : absl::StrCat(TestName(), part)),
      fixture_(config.traits.make_fixture(config.world_size, config.site)) {}

WorkerGroup Group::worker(int rank) const {
  WorkerGroup group;
  group.rank = rank;
  group.world_size = world_size_;
  group.run_id = run_id_;
  group.store = store_;
  group.address = "127.0.0.1";
  group.credentials = InsecureCredentials();
  group.timeout = kPatience;
  return group;
}

void Group::ForEachRank(const std::function<void(int rank)>& body) {
  if (process_ == nullptr) {
    RunRanks(world_size_, body);
  } else {
    body(process_->rank);
  }
}

void Group::Meet(int rank) {
  const auto met =
      store_->AllGather(worker(rank).Key("meet"), rank, world_size_, /*value=*/"", Soon());
  EXPECT_EQ(met.status(), absl::OkStatus());
}

absl::Status Rank::Exchange(const StepOptions& step) {
  const std::vector<SyncHandle> handles = LaunchStep(*sync, buckets.size(), step);
  const absl::Status queued = WaitForAll(handles);
  const std::shared_ptr<GpuApi> gpu = sync->gpu();
  if (!queued.ok() || gpu == nullptr) return queued;
  // A resolved handle says that the exchange is queued; what fails on the GPU comes out of later
  // waits.
  GS_ASSIGN_OR_RETURN(const ScopedEvent done, ScopedEvent::Create(gpu));
  GS_RETURN_IF_ERROR(gpu->Record(done.get(), gpu->ComputeStream()));
  GS_RETURN_IF_ERROR(gpu->Synchronize(done.get()));
  return WaitForAll(handles);
}

void Group::Run(const std::function<Plan(int rank)>& plan,
                const std::function<void(int rank, Rank&)>& body) {
  ForEachRank([&](int rank) {
    absl::StatusOr<std::unique_ptr<GradientSync>> sync = fixture_->Create(worker(rank));
    ASSERT_TRUE(sync.ok()) << sync.status();
    Rank self{*std::move(sync), {}};
    absl::StatusOr<std::vector<GradBucket>> buckets = self.sync->Bind(plan(rank), Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    self.buckets = *std::move(buckets);
    body(rank, self);
  });
}

}  // namespace gradsync::conformance
