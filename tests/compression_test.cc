// Compressed exchanges against an oracle in plain code: for every topology, update site and codec,
// every rank must end with the oracle's bits, step after step.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "allreduce/gloo_gradient_sync.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "core/group/key_value_store.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/sync/local_sync.h"
#include "gtest/gtest.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "tests/rank_threads.h"
#include "tests/reference.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

struct Case {
  std::string compression;
  int workers = 1;
  int servers = 0;  // 0: a ring
  UpdateSite site = UpdateSite::kWorker;
  bool grpc = false;
};

std::string Name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name =
      absl::StrCat(c.compression, c.grpc ? "Grpc" : "",
                   c.servers > 0 ? absl::StrCat("Servers", c.servers) : "Ring", "Workers",
                   c.workers, c.site == UpdateSite::kOwner ? "UpdateAtOwner" : "");
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }),
             name.end());
  return name;
}

// A bucket below n elements, one of many stripes with a cut tail, one with empty chunks.
Plan UnevenPlan(int n, const std::string& compression) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets(
      {{"a", {3}, {1}, 0}, {"b", {5000}, {1}, 0}, {"c", {2049}, {1}, 0}, {"d", {40}, {1}, 0}},
      {{0}, {1}, {2}, {3}}, optimizer, n, /*chunk_bytes=*/512, *ParseCodec(compression));
}

class Job {
 public:
  explicit Job(const Case& config)
      : config_(config), link_(MakeLink(config)), store_(NewInMemoryStore()) {
    for (int i = 0; i < config_.servers; ++i) {
      ServerOptions options;
      options.link = link_;
      servers_.push_back(*ParameterServer::Start(options));
    }
  }

  std::unique_ptr<GradientSync> Create(int rank) const {
    const WorkerGroup group = GroupOf(rank);
    if (config_.servers == 0) {
      RingOptions options;
      options.group = group;
      options.link = link_;
      options.update_site = config_.site;
      options.connections = 2;
      options.lead = 3;
      return *CreateRingGradientSync(options);
    }
    PsOptions options;
    options.group = group;
    options.link = link_;
    options.update_site = config_.site;
    for (const auto& server : servers_) options.servers.push_back(server->address());
    return *CreatePsGradientSync(options);
  }

  WorkerGroup GroupOf(int rank) const {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = config_.workers;
    group.run_id = "compression";
    group.store = store_;
    group.address = "127.0.0.1";
    return group;
  }

 private:
  static std::shared_ptr<StreamLink> MakeLink(const Case& config) {
    if (config.grpc) return NewGrpcLink();
    InProcessLinkOptions options;
    options.split_payloads = true;
    options.max_delay = absl::Microseconds(200);
    return NewInProcessLink(options);
  }

  const Case config_;
  const std::shared_ptr<StreamLink> link_;
  const std::shared_ptr<KeyValueStore> store_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
};

// What the ranks must end with, from the definitions in core/plan/codec.h. LibTorch rounds.
class Oracle {
 public:
  Oracle(const Plan& plan, bool ring) : plan_(plan), ring_(ring), residuals_(plan.world_size()) {
    for (FlatValues& residual : residuals_) {
      for (const BucketPlan& bucket : plan_.buckets()) residual.emplace_back(bucket.numel, 0.0f);
    }
  }

  FlatValues Mean(const std::vector<FlatValues>& grads, double inverse_loss_scale) {
    const int n = plan_.world_size();
    const std::vector<FlatValues> sent = Sent(grads);
    FlatValues mean;
    for (size_t b = 0; b < plan_.buckets().size(); ++b) {
      const StripeLayout& layout = plan_.buckets()[b].layout;
      std::vector<float>& flat = mean.emplace_back(plan_.buckets()[b].numel, 0.0f);
      for (size_t i = 0; i < flat.size(); ++i) {
        const int chunk = layout.chunk_of(static_cast<int>(i / layout.chunk_elements()));
        float sum = sent[FoldRank(chunk, 0, n)][b][i];
        for (int p = 1; p < n; ++p) {
          if (ring_) sum = Rounded(sum);
          sum = sum + sent[FoldRank(chunk, p, n)][b][i];
        }
        volatile float scaled = sum * (1.0f / static_cast<float>(n));
        flat[i] = Rounded(scaled * static_cast<float>(inverse_loss_scale));
      }
    }
    return mean;
  }

 private:
  float Rounded(float x) const {
    switch (plan_.codec().kind) {
      case Codec::Kind::kFp16:
        return static_cast<float>(c10::Half(x));
      case Codec::Kind::kBf16:
        return static_cast<float>(c10::BFloat16(x));
      default:
        return x + 0.0f;
    }
  }

  std::vector<FlatValues> Sent(const std::vector<FlatValues>& grads) {
    std::vector<FlatValues> sent = grads;
    if (ring_) return sent;
    for (int rank = 0; rank < plan_.world_size(); ++rank) {
      for (size_t b = 0; b < plan_.buckets().size(); ++b) {
        std::vector<float>& flat = sent[rank][b];
        if (plan_.codec().sparse()) {
          const StripeLayout& layout = plan_.buckets()[b].layout;
          for (int slot = 0; slot < layout.slots(); ++slot) {
            Select(layout.range(slot), &residuals_[rank][b], &flat);
          }
        } else {
          for (float& x : flat) x = Rounded(x);
        }
      }
    }
    return sent;
  }

  void Select(ElementRange range, std::vector<float>* residual, std::vector<float>* flat) const {
    const int64_t size = range.size();
    const int64_t k = static_cast<int64_t>(std::ceil(plan_.codec().ratio * size));
    const int64_t count = 6 * k >= 4 * size ? size : k;
    std::vector<int64_t> order(size);
    std::iota(order.begin(), order.end(), range.begin);
    for (int64_t i : order) (*residual)[i] += (*flat)[i];
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return std::abs((*residual)[a]) > std::abs((*residual)[b]);
    });
    for (int64_t i = 0; i < size; ++i) {
      float& left = (*residual)[order[i]];
      (*flat)[order[i]] = i < count ? left : 0.0f;
      if (i < count) left = 0;
    }
  }

  const Plan plan_;
  const bool ring_;
  std::vector<FlatValues> residuals_;
};

std::vector<FlatValues> Gradients(const Plan& plan, int64_t step) {
  std::vector<FlatValues> all;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    all.push_back(RandomValues(plan, 100 * step + rank + 1));
  }
  return all;
}

StepOptions Step(const Case& c, int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  step.inverse_loss_scale = c.servers == 2 ? 0.3 : 1;
  if (c.site == UpdateSite::kOwner && number % 2 == 0) step.max_norm = 0.5;
  return step;
}

bool SameBits(const FlatValues& a, const FlatValues& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

class CompressionTest : public testing::TestWithParam<Case> {};

TEST_P(CompressionTest, EveryRankEndsWithTheOraclesBits) {
  const Case& c = GetParam();
  constexpr int64_t kSteps = 4;
  const Plan plan = UnevenPlan(c.workers, c.compression);
  Oracle oracle(plan, c.servers == 0);
  ReferenceOptimizer optimizer(plan);
  std::vector<FlatValues> means(1);
  std::vector<FlatValues> params = {RandomValues(plan, 7)};
  for (int64_t s = 1; s <= kSteps; ++s) {
    means.push_back(oracle.Mean(Gradients(plan, s), Step(c, s).inverse_loss_scale));
    params.push_back(params.back());
    optimizer.Apply(Step(c, s), means.back(), &params.back());
  }
  const Job job(c);
  RunRanks(c.workers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = job.Create(rank);
    absl::StatusOr<std::vector<GradBucket>> buckets = sync->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    if (rank == 0) Write(params[0], *buckets, &GradBucket::param);
    ASSERT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    EXPECT_TRUE(SameBits(Read(*buckets, &GradBucket::param), params[0]));  // travel whole
    for (int64_t s = 1; s <= kSteps; ++s) {
      Write(Gradients(plan, s)[rank], *buckets, &GradBucket::grad);
      ASSERT_EQ(RunStep(*sync, plan, Step(c, s)), absl::OkStatus());
      if (c.site == UpdateSite::kOwner) {
        ASSERT_TRUE(SameBits(Read(*buckets, &GradBucket::param), params[s])) << "step " << s;
      } else {
        ASSERT_TRUE(SameBits(Read(*buckets, &GradBucket::grad), means[s])) << "step " << s;
      }
    }
    EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
}

// Rounded n times at most on the way and once at the end, by half a unit in the last place each.
TEST_P(CompressionTest, SixteenBitMeansAreCloseToTheExactOnes) {
  const Case& c = GetParam();
  const Plan plan = UnevenPlan(c.workers, c.compression);
  if (plan.codec().sparse()) GTEST_SKIP() << "what top-k leaves out is not small";
  const double unit = plan.codec().kind == Codec::Kind::kFp16 ? 0x1p-11 : 0x1p-8;
  const std::vector<FlatValues> grads = Gradients(plan, 1);
  const FlatValues exact = ReferenceMean(plan, grads, 1);
  const FlatValues rounded = Oracle(plan, c.servers == 0).Mean(grads, 1);
  for (size_t b = 0; b < exact.size(); ++b) {
    for (size_t i = 0; i < exact[b].size(); ++i) {
      ASSERT_NEAR(rounded[b][i], exact[b][i], (c.workers + 1) * unit) << b << " " << i;
    }
  }
}

// The largest absolute value and whether all are finite, of what every rank ends with after a step
// in which rank 0's gradients are `value` and all others' 0.
struct Outcome {
  bool finite = true;
  float largest = 0;
};
Outcome AfterGradientsOf(const Case& c, float value, double inverse_loss_scale) {
  const Plan plan = UnevenPlan(c.workers, c.compression);
  const Job job(c);
  Outcome outcome;
  RunRanks(c.workers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = job.Create(rank);
    absl::StatusOr<std::vector<GradBucket>> buckets = sync->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    const FlatBuffer& grad = (*buckets)[1].grad;
    std::fill_n(grad.floats(), grad.numel, rank == 0 ? value : 0.0f);
    StepOptions step = Step(c, 1);
    step.inverse_loss_scale = inverse_loss_scale;
    ASSERT_EQ(RunStep(*sync, plan, step), absl::OkStatus());
    const auto which = c.site == UpdateSite::kOwner ? &GradBucket::param : &GradBucket::grad;
    const FlatValues found = Read(*buckets, which);
    EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
    if (rank != c.workers - 1) return;
    for (int64_t i = 0; i < 5000; ++i) {
      outcome.finite = outcome.finite && std::isfinite(found[1][i]);
      outcome.largest = std::max(outcome.largest, std::fabs(found[1][i]));
    }
  });
  return outcome;
}

// It became an infinity on the wire, and the parameters of every rank were infinite or NaNs.
TEST_P(CompressionTest, WhatIsTooLargeForFp16Saturates) {
  const Case& c = GetParam();
  if (c.compression != "fp16") GTEST_SKIP() << "only fp16 has a range smaller than fp32's";
  const Outcome outcome = AfterGradientsOf(c, 1e6f, /*inverse_loss_scale=*/1);
  EXPECT_TRUE(outcome.finite);
  EXPECT_GT(outcome.largest, 0);
  if (c.site == UpdateSite::kWorker) {
    EXPECT_LE(outcome.largest, 65504);
  }
}

TEST_P(CompressionTest, AnInfinityReachesEveryRankThroughFp16) {
  const Case& c = GetParam();
  if (c.compression != "fp16") GTEST_SKIP() << "only fp16 has a range smaller than fp32's";
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(AfterGradientsOf(c, infinity, /*inverse_loss_scale=*/1).finite);
}

// A loss scaler lowers its scale when it sees an infinity.
TEST_P(CompressionTest, WithALossScaleWhatIsTooLargeForFp16IsInfinite) {
  const Case& c = GetParam();
  if (c.compression != "fp16") GTEST_SKIP() << "only fp16 has a range smaller than fp32's";
  const Outcome outcome = AfterGradientsOf(c, 1e6f, /*inverse_loss_scale=*/0.5);
  // An only rank of a ring sends its gradient to nobody, and the mean is rounded unscaled.
  const bool sent = c.workers > 1 || c.servers > 0;
  EXPECT_EQ(outcome.finite, !sent);
}

TEST_P(CompressionTest, RanksThatDisagreeAreToldBothCodecs) {
  const Case& c = GetParam();
  if (c.workers == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  const Job job(c);
  RunRanks(c.workers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = job.Create(rank);
    const std::string other = rank == 1 ? "none" : c.compression;
    const absl::Status status = sync->Bind(UnevenPlan(c.workers, other), Soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "\"compression none\"")) << status;
    EXPECT_TRUE(
        absl::StrContains(status.message(), absl::StrCat("\"compression ", c.compression, "\"")))
        << status;
  });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    for (const char* compression : {"fp16", "bf16"}) {
      for (int n : {1, 2, 3, 4, 5}) {
        cases.push_back({compression, n, 0, site, false});
        cases.push_back({compression, n, 1 + n % 3, site, false});
      }
    }
    for (const char* compression : {"topk:0.02", "topk:0.3", "topk:1"})
      for (int n : {1, 2, 3, 4}) cases.push_back({compression, n, 1 + n % 3, site, false});
    cases.push_back({"bf16", 3, 0, site, true});
    cases.push_back({"fp16", 3, 2, site, true});
    cases.push_back({"topk:0.02", 3, 2, site, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, CompressionTest, testing::ValuesIn(Cases()), Name);

void ExpectBindRefuses(GradientSync& sync, const std::string& compression) {
  const absl::Status status = sync.Bind(UnevenPlan(1, compression), Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), compression)) << status;
}

TEST(CompressionLimitsTest, BackendsThatCannotDoItRefuseThePlan) {
  const Case ring = {"bf16", 1, 0, UpdateSite::kWorker, false};
  ExpectBindRefuses(*CreateLocalSync(UpdateSite::kWorker), "bf16");
  ShmRingOptions shm;
  shm.group = Job(ring).GroupOf(0);
  ExpectBindRefuses(**CreateShmRingGradientSync(shm), "bf16");
#ifdef USE_C10D_GLOO  // not with pip's LibTorch, which lacks its headers
  GlooOptions gloo;
  gloo.group = Job(ring).GroupOf(0);
  ExpectBindRefuses(**CreateGlooGradientSync(gloo), "fp16");
#endif
  const Job job(ring);
  ExpectBindRefuses(*job.Create(0), "topk:0.1");
}

// Two steps, then two more by new backends with what the old ones kept.
TEST(CompressionLimitsTest, WhatWasKeptGoesOnInNewProcesses) {
  const Case c = {"topk:0.02", 2, 1, UpdateSite::kWorker, false};
  const Plan plan = UnevenPlan(2, c.compression);
  std::vector<RankState> kept(2);
  const auto train = [&](int64_t begin, int64_t end, bool resumed, std::vector<FlatValues>* to) {
    const Job job(c);
    RunRanks(2, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = job.Create(rank);
      absl::StatusOr<std::vector<GradBucket>> buckets = sync->Bind(plan, Soon());
      ASSERT_TRUE(buckets.ok()) << buckets.status();
      if (resumed) {
        ASSERT_EQ(sync->ImportRankState(kept[rank]), absl::OkStatus());
      }
      for (int64_t s = begin; s <= end; ++s) {
        Write(Gradients(plan, s)[rank], *buckets, &GradBucket::grad);
        ASSERT_EQ(RunStep(*sync, plan, Step(c, s)), absl::OkStatus());
        if (rank == 0) to->push_back(Read(*buckets, &GradBucket::grad));
        if (s != 2) continue;
        const auto state = sync->ExportRankState();
        ASSERT_TRUE(state.ok()) << state.status();
        EXPECT_EQ(state->residuals.size(), plan.tensors().size());
        kept[rank] = *state;
      }
      RankState wrong = kept[rank];
      wrong.residuals.begin()->second.pop_back();
      EXPECT_EQ(sync->ImportRankState(wrong).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
    });
  };
  std::vector<FlatValues> whole, rest;
  train(1, 4, /*resumed=*/false, &whole);
  train(3, 4, /*resumed=*/true, &rest);
  ASSERT_EQ(whole.size(), 4u);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_TRUE(SameBits(rest[0], whole[2]));
  EXPECT_TRUE(SameBits(rest[1], whole[3]));
}

// A new process has nothing kept either, so a job that is resumed in place must not.
TEST(CompressionLimitsTest, ImportingStateDropsWhatWasKept) {
  const Case c = {"topk:0.02", 1, 1, UpdateSite::kWorker, false};
  const Plan plan = UnevenPlan(1, c.compression);
  const Job job(c);
  const std::unique_ptr<GradientSync> sync = job.Create(0);
  absl::StatusOr<std::vector<GradBucket>> buckets = sync->Bind(plan, Soon());
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  FlatValues first;
  for (int64_t s : {1, 2}) {
    Write(Gradients(plan, 1)[0], *buckets, &GradBucket::grad);
    ASSERT_EQ(RunStep(*sync, plan, Step(c, s)), absl::OkStatus());
    if (s == 1) first = Read(*buckets, &GradBucket::grad);
    ASSERT_EQ(sync->ImportOptimizerState(OptimizerState(), Soon()), absl::OkStatus());
  }
  EXPECT_TRUE(SameBits(Read(*buckets, &GradBucket::grad), first));
  EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
}

}  // namespace
}  // namespace gradsync
