#include "tests/conformance_suite.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/sync/buckets.h"
#include "tests/conformance_group.h"
#include "tests/reference.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

using conformance::Gradients;
using conformance::Group;
using conformance::Momentum;
using conformance::Rank;
using conformance::Step;
using conformance::UnevenPlan;

OptimizerSpec AdamW() {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdamW;
  spec.groups.resize(2);
  spec.groups[0].weight_decay = 0.01;
  return spec;
}

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
  return absl::StrCat(info.param.traits.name, info.param.world_size,
                      info.param.site == UpdateSite::kOwner ? "UpdateAtOwner" : "UpdateAtWorker");
}

void ConformanceTest::SetUp() {
  if (!GetParam().traits.available) return;
  const absl::Status available = GetParam().traits.available();
  if (absl::IsNotFound(available) || absl::IsFailedPrecondition(available)) {
    GTEST_SKIP() << available.message();
  }
  ASSERT_EQ(available, absl::OkStatus());
}

TEST_P(ConformanceTest, BindReturnsZeroedAlignedBucketsOfThePlansSizes) {
  const Plan plan = UnevenPlan(GetParam().world_size, Momentum());
  Group(GetParam())
      .Run([&](int) { return plan; },
           [&](int, Rank& self) {
             EXPECT_EQ(self.sync->update_site(), GetParam().site);
             ASSERT_EQ(self.buckets.size(), plan.buckets().size());
             for (size_t b = 0; b < self.buckets.size(); ++b) {
               for (const FlatBuffer& flat : {self.buckets[b].grad, self.buckets[b].param}) {
                 EXPECT_EQ(flat.type, ElementType::kFloat32);
                 EXPECT_EQ(flat.numel, plan.buckets()[b].numel);
                 EXPECT_EQ(reinterpret_cast<uintptr_t>(flat.data) % 64, 0u);
                 EXPECT_NE(flat.memory, nullptr);
               }
             }
             for (FlatBuffer GradBucket::*which : {&GradBucket::grad, &GradBucket::param}) {
               for (const std::vector<float>& flat : self.Read(which)) {
                 EXPECT_TRUE(std::all_of(flat.begin(), flat.end(), [](float x) { return x == 0; }));
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
  Group first(GetParam());
  first.Run([&](int) { return plan; },
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
  for (int rank = 0; rank < GetParam().world_size; ++rank) {
    if (!first.here(rank)) continue;
    EXPECT_EQ(exported[rank].step, 2);
    EXPECT_EQ(exported[rank].slots.size(), plan.tensors().size());
    if (first.here(0)) {
      EXPECT_EQ(exported[rank].slots, exported[0].slots);
    }
  }
  Group(GetParam(), "/continued")
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

}  // namespace gradsync
