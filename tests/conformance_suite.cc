#include "tests/conformance_suite.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "links/in_memory_store.h"
#include "sync/flat_buckets.h"
#include "tests/bucket_values.h"
#include "tests/rank_threads.h"
#include "tests/reference.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

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

OptimizerSpec AdamW() {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdamW;
  spec.groups.resize(2);
  spec.groups[0].weight_decay = 0.01;
  return spec;
}

TensorSpec Tensor(std::string name, int64_t numel, int group) {
  return {std::move(name), {numel}, {1}, group};
}

// Uneven on purpose: a bucket below n elements of payload, one of many stripes with a cut tail, and
// one whose last stripe has empty chunks; small chunks make many of them.
Plan UnevenPlan(int world_size, OptimizerSpec optimizer) {
  std::vector<TensorSpec> tensors = {Tensor("a", 3, 0), Tensor("b", 5000, 0), Tensor("c", 17, 1),
                                     Tensor("d", 2049, 1), Tensor("e", 40, 0)};
  return *Plan::FromBuckets(tensors, {{0}, {1, 2}, {3}, {4}}, std::move(optimizer), world_size,
                            /*chunk_bytes=*/512);
}

// One rank's view of a running group.
struct Rank {
  std::unique_ptr<GradientSync> sync;
  std::vector<GradBucket> buckets;

  void Write(const FlatValues& values, at::Tensor GradBucket::*which) {
    gradsync::Write(values, buckets, which);
  }

  FlatValues Read(at::Tensor GradBucket::*which) const { return gradsync::Read(buckets, which); }

  // Launches every bucket and waits for all; the first error.
  absl::Status Exchange(const StepOptions& step) {
    return WaitForAll(LaunchStep(*sync, buckets.size(), step));
  }
};

bool SameBits(const FlatValues& a, const FlatValues& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// A group of ranks as threads over one in-memory store.
class Group {
 public:
  explicit Group(const ConformanceCase& config)
      : world_size_(config.world_size),
        store_(NewInMemoryStore()),
        fixture_(config.traits.make_fixture(config.world_size, config.site)) {}

  WorkerGroup worker(int rank) const {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = world_size_;
    group.run_id = "conformance";
    group.store = store_;
    group.address = "127.0.0.1";
    group.credentials = InsecureCredentials();
    group.timeout = kPatience;
    return group;
  }

  // Creates and binds every rank, then runs `body` on the rank's thread.
  void Run(const std::function<Plan(int rank)>& plan,
           const std::function<void(int rank, Rank&)>& body) {
    RunRanks(world_size_, [&](int rank) {
      absl::StatusOr<std::unique_ptr<GradientSync>> sync = fixture_->Create(worker(rank));
      ASSERT_TRUE(sync.ok()) << sync.status();
      Rank self{*std::move(sync), {}};
      absl::StatusOr<std::vector<GradBucket>> buckets = self.sync->Bind(plan(rank), Soon());
      ASSERT_TRUE(buckets.ok()) << buckets.status();
      self.buckets = *std::move(buckets);
      body(rank, self);
    });
  }

  BackendFixture& fixture() { return *fixture_; }

 private:
  const int world_size_;
  std::shared_ptr<KeyValueStore> store_;
  std::unique_ptr<BackendFixture> fixture_;
};

StepOptions Step(int64_t number, double lr = 0.05) {
  StepOptions step;
  step.step = number;
  step.lr = lr;
  return step;
}

// Gradients of all ranks in a step.
std::vector<FlatValues> Gradients(const Plan& plan, int64_t step) {
  std::vector<FlatValues> all;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    all.push_back(RandomValues(plan, 100 * step + rank + 1));
  }
  return all;
}

bool KnowsBits(const ConformanceCase& config) {
  return config.traits.plan_order_beyond_two || config.world_size <= 2;
}

// Equal to the bit where the backend folds in plan order, otherwise within what another order may
// change.
void ExpectSame(const ConformanceCase& config, const FlatValues& found,
                const FlatValues& expected) {
  if (KnowsBits(config)) {
    EXPECT_TRUE(SameBits(found, expected));
    return;
  }
  for (size_t b = 0; b < expected.size(); ++b) {
    for (size_t i = 0; i < expected[b].size(); ++i) {
      ASSERT_NEAR(found[b][i], expected[b][i], 1e-6) << "bucket " << b << " element " << i;
    }
  }
}

// Runs `steps` steps and compares every rank with the reference after each.
void ExpectTrainsLikeReference(const ConformanceCase& config, const OptimizerSpec& optimizer,
                               const std::function<StepOptions(int64_t)>& options, int steps) {
  const Plan plan = UnevenPlan(config.world_size, optimizer);
  const FlatValues start = RandomValues(plan, 7);
  std::vector<FlatValues> means;
  std::vector<FlatValues> params = {start};
  ReferenceOptimizer reference(plan);
  for (int64_t s = 1; s <= steps; ++s) {
    means.push_back(ReferenceMean(plan, Gradients(plan, s), options(s).inverse_loss_scale));
    params.push_back(params.back());
    reference.Apply(options(s), means.back(), &params.back());
  }
  Group(config).Run([&](int) { return plan; },
                    [&](int rank, Rank& self) {
                      if (rank == 0) self.Write(start, &GradBucket::param);
                      ASSERT_EQ(self.sync->BroadcastParameters(Soon()), absl::OkStatus());
                      for (int64_t s = 1; s <= steps; ++s) {
                        self.Write(Gradients(plan, s)[rank], &GradBucket::grad);
                        ASSERT_EQ(self.Exchange(options(s)), absl::OkStatus());
                        if (config.site == UpdateSite::kOwner) {
                          ExpectSame(config, self.Read(&GradBucket::param), params[s]);
                        } else {
                          ExpectSame(config, self.Read(&GradBucket::grad), means[s - 1]);
                        }
                      }
                      EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
                    });
}

}  // namespace

std::vector<ConformanceCase> ConformanceCases(const BackendTraits& traits) {
  std::vector<ConformanceCase> cases;
  for (int world_size : traits.world_sizes) {
    cases.push_back({traits, world_size, UpdateSite::kWorker});
    if (traits.update_at_owner) cases.push_back({traits, world_size, UpdateSite::kOwner});
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<ConformanceCase>& info) {
  return absl::StrCat(info.param.world_size,
                      info.param.site == UpdateSite::kOwner ? "UpdateAtOwner" : "UpdateAtWorker");
}

TEST_P(ConformanceTest, BindReturnsZeroedAlignedBucketsOfThePlansSizes) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run(
          [&](int) { return plan; },
          [&](int, Rank& self) {
            EXPECT_EQ(self.sync->update_site(), GetParam().site);
            ASSERT_EQ(self.buckets.size(), plan.buckets().size());
            for (size_t b = 0; b < self.buckets.size(); ++b) {
              for (const at::Tensor& flat : {self.buckets[b].grad, self.buckets[b].param}) {
                ASSERT_EQ(flat.dim(), 1);
                EXPECT_EQ(flat.numel(), plan.buckets()[b].numel);
                const float* data = flat.data_ptr<float>();
                EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
                EXPECT_TRUE(std::all_of(data, data + flat.numel(), [](float x) { return x == 0; }));
              }
            }
            EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
          });
}

TEST_P(ConformanceTest, TrainsLikeOneProcessWithMomentum) {
  ExpectTrainsLikeReference(
      GetParam(), Momentum(), [](int64_t s) { return Step(s, 0.1 / s); }, 5);
}

TEST_P(ConformanceTest, TrainsLikeOneProcessWithAdamW) {
  ExpectTrainsLikeReference(
      GetParam(), AdamW(), [](int64_t s) { return Step(s, 1e-3); }, 3);
}

TEST_P(ConformanceTest, AppliesTheInverseLossScaleAfterTheMean) {
  ExpectTrainsLikeReference(
      GetParam(), Momentum(),
      [](int64_t s) {
        StepOptions step = Step(s);
        step.inverse_loss_scale = 1.0 / 3;
        return step;
      },
      2);
}

TEST_P(ConformanceTest, ClipsByTheGlobalNorm) {
  ExpectTrainsLikeReference(
      GetParam(), Momentum(),
      [](int64_t s) {
        StepOptions step = Step(s);
        step.max_norm = s == 2 ? 1e6 : 0.5;  // step 2 is not clipped
        return step;
      },
      3);
}

TEST_P(ConformanceTest, BroadcastGivesEveryRankTheParametersOfRankZero) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             for (uint64_t round : {1, 2}) {
               self.Write(RandomValues(plan, 10 * round + rank), &GradBucket::param);
               ASSERT_EQ(self.sync->BroadcastParameters(Soon()), absl::OkStatus());
               EXPECT_TRUE(SameBits(self.Read(&GradBucket::param), RandomValues(plan, 10 * round)));
             }
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
}

TEST_P(ConformanceTest, WireStatsGrowByTheSameAmountEachStep) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int, Rank& self) {
             ASSERT_EQ(self.Exchange(Step(1)), absl::OkStatus());
             const WireStats one = self.sync->wire_stats();
             ASSERT_EQ(self.Exchange(Step(2)), absl::OkStatus());
             EXPECT_EQ((self.sync->wire_stats() - one).rx_bytes, one.rx_bytes);
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
}

TEST_P(ConformanceTest, PlansThatDifferAreRefusedWithBothFingerprints) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  const int odd_one = GetParam().world_size - 1;
  OptimizerSpec other = Momentum();
  other.groups[0].momentum = 0.8;
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  const Plan different = UnevenPlan(GetParam().world_size, other);
  Group group(GetParam());
  RunRanks(GetParam().world_size, [&](int rank) {
    auto sync = group.fixture().Create(group.worker(rank));
    ASSERT_TRUE(sync.ok()) << sync.status();
    const absl::Status bound = (*sync)->Bind(rank == odd_one ? different : plan, Soon()).status();
    EXPECT_EQ(bound.code(), absl::StatusCode::kFailedPrecondition) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), plan.fingerprint())) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), different.fingerprint())) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "momentum")) << bound;
  });
}

TEST_P(ConformanceTest, APlanForAnotherWorldSizeIsRefused) {
  Group group(GetParam());
  auto sync = group.fixture().Create(group.worker(0));
  ASSERT_TRUE(sync.ok()) << sync.status();
  const absl::Status bound =
      (*sync)->Bind(UnevenPlan(GetParam().world_size + 1, Momentum()), Soon()).status();
  EXPECT_EQ(bound.code(), absl::StatusCode::kInvalidArgument) << bound;
}

TEST_P(ConformanceTest, LaunchBeforeBindFails) {
  Group group(GetParam());
  auto sync = group.fixture().Create(group.worker(0));
  ASSERT_TRUE(sync.ok()) << sync.status();
  EXPECT_EQ((*sync)->Launch(Step(1), 0).Wait(Soon()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ConformanceTest, OutOfOrderLaunchFailsTheWholeGroup) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             if (rank == 0) {
               const absl::Status status = self.sync->Launch(Step(1), 1).Wait(Soon());
               EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
             } else {
               const absl::Status status = self.Exchange(Step(1));
               EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
               EXPECT_TRUE(absl::StrContains(status.message(), "rank 0")) << status;
             }
             EXPECT_FALSE(self.sync->status().ok());
             EXPECT_FALSE(self.sync->Launch(Step(2), 0).Wait(Soon()).ok());
           });
}

TEST_P(ConformanceTest, AbortReachesEveryRankWithItsReason) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  const int culprit = GetParam().world_size / 2;
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             if (rank == culprit) {
               self.sync->Abort(absl::DataLossError("disk on fire"));
             }
             const absl::Status status = self.Exchange(Step(1));
             EXPECT_FALSE(status.ok());
             EXPECT_TRUE(absl::StrContains(status.message(), "disk on fire")) << status;
             EXPECT_EQ(status.code(),
                       rank == culprit ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted);
             EXPECT_EQ(self.sync->status(), status);
           });
}

TEST_P(ConformanceTest, ARankThatLeavesWithoutShutdownFailsTheOthers) {
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank has nobody to leave";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  // A rank may have its results while others still wait for theirs.
  absl::BlockingCounter done(GetParam().world_size);
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             ASSERT_EQ(self.Exchange(Step(1)), absl::OkStatus());
             done.DecrementCount();
             if (rank == 1) {
               done.Wait();
               self.sync.reset();
               return;
             }
             const absl::Status status = self.Exchange(Step(2));
             EXPECT_TRUE(absl::IsAborted(status) || absl::IsUnavailable(status)) << status;
             EXPECT_TRUE(absl::StrContains(status.message(), "rank 1")) << status;
           });
}

TEST_P(ConformanceTest, BucketsOutliveTheBackend) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             self.Write(Gradients(plan, 1)[rank], &GradBucket::grad);
             ASSERT_EQ(self.Exchange(Step(1)), absl::OkStatus());
             ASSERT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
             const FlatValues before = self.Read(&GradBucket::grad);
             self.sync.reset();
             EXPECT_TRUE(SameBits(self.Read(&GradBucket::grad), before));
           });
}

TEST_P(ConformanceTest, ExportedStateContinuesElsewhereWithTheSameBits) {
  if (GetParam().site != UpdateSite::kOwner)
    GTEST_SKIP() << "under kWorker the caller has the state";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  FlatValues params = RandomValues(plan, 7);
  ReferenceOptimizer reference(plan);
  for (int64_t s = 1; s <= 4; ++s) {
    reference.Apply(Step(s), ReferenceMean(plan, Gradients(plan, s), 1), &params);
  }
  std::vector<OptimizerState> exported(GetParam().world_size);
  std::vector<FlatValues> halfway(GetParam().world_size);
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             self.Write(RandomValues(plan, 7), &GradBucket::param);
             ASSERT_EQ(self.sync->BroadcastParameters(Soon()), absl::OkStatus());
             for (int64_t s : {1, 2}) {
               self.Write(Gradients(plan, s)[rank], &GradBucket::grad);
               ASSERT_EQ(self.Exchange(Step(s)), absl::OkStatus());
             }
             auto state = self.sync->ExportOptimizerState(Soon());
             ASSERT_TRUE(state.ok()) << state.status();
             exported[rank] = *std::move(state);
             halfway[rank] = self.Read(&GradBucket::param);
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
  for (const OptimizerState& state : exported) {
    EXPECT_EQ(state.step, 2);
    EXPECT_EQ(state.slots, exported[0].slots);
    EXPECT_EQ(state.slots.size(), plan.tensors().size());
  }
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             self.Write(halfway[rank], &GradBucket::param);
             ASSERT_EQ(self.sync->BroadcastParameters(Soon()), absl::OkStatus());
             ASSERT_EQ(self.sync->ImportOptimizerState(exported[rank], Soon()), absl::OkStatus());
             for (int64_t s : {3, 4}) {
               self.Write(Gradients(plan, s)[rank], &GradBucket::grad);
               ASSERT_EQ(self.Exchange(Step(s)), absl::OkStatus());
             }
             ExpectSame(GetParam(), self.Read(&GradBucket::param), params);
             EXPECT_EQ(self.sync->Shutdown(Soon()), absl::OkStatus());
           });
}

TEST_P(ConformanceTest, StateThatDoesNotFitThePlanIsRefused) {
  if (GetParam().site != UpdateSite::kOwner)
    GTEST_SKIP() << "under kWorker the caller has the state";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  OptimizerState state;
  state.step = 1;
  state.slots["a"]["momentum_buffer"] = {1, 2};
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int, Rank& self) {
             const absl::Status status = self.sync->ImportOptimizerState(state, Soon());
             EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
             EXPECT_TRUE(absl::StrContains(status.message(), "expected 3")) << status;
           });
}

TEST_P(ConformanceTest, RanksThatDisagreeOnTheLearningRateFail) {
  if (GetParam().site != UpdateSite::kOwner) GTEST_SKIP() << "the learning rate is the caller's";
  if (GetParam().world_size == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int rank, Rank& self) {
             EXPECT_FALSE(self.Exchange(Step(1, rank == 1 ? 0.2 : 0.1)).ok());
           });
}

}  // namespace gradsync
