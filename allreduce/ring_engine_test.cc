#include "allreduce/ring_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "allreduce/ring_tokens.h"
#include "allreduce/simulated_ring.h"
#include "allreduce/work_queue.h"
#include "core/base/deadline.h"
#include "core/base/kernels.h"
#include "core/optim/range_optimizer.h"
#include "core/plan/ring_schedule.h"
#include "core/sync/buckets.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using Values = std::vector<std::vector<float>>;  // by bucket

// Buckets below n elements, of many stripes, with a cut tail, with empty chunks.
Plan UnevenPlan(int n) {
  const std::vector<int64_t> sizes = {3, 700, 17, 129, 16 * n + 1, 1};
  std::vector<TensorSpec> tensors;
  for (size_t i = 0; i < sizes.size(); ++i)
    tensors.push_back({absl::StrCat("t", i), {sizes[i]}, {1}, 0});
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets(tensors, {{0}, {1, 2}, {3}, {4}, {5}}, optimizer, n, 128);
}

// Sums of these are rounded, so that their order shows.
float Gradient(int rank, int64_t step, int bucket, int64_t i) {
  const int64_t mixed = (rank * 7919 + step * 104729 + bucket * 1299709 + i * 15485863) % 20011;
  return static_cast<float>(mixed - 10000) / static_cast<float>(3 + mixed % 11);
}

// One thread, from the definitions in core/plan/stripes.h.
Values MeanOf(const Plan& plan, int64_t step, double inverse_loss_scale) {
  const int n = plan.world_size();
  Values mean;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    std::vector<float>& flat = mean.emplace_back(layout.numel());
    for (int64_t i = 0; i < layout.numel(); ++i) {
      const int chunk = layout.chunk_of(static_cast<int>(i / layout.chunk_elements()));
      float sum = Gradient(FoldRank(chunk, 0, n), step, b, i);
      for (int p = 1; p < n; ++p) sum = sum + Gradient(FoldRank(chunk, p, n), step, b, i);
      flat[i] = sum * (1.0f / static_cast<float>(n)) * static_cast<float>(inverse_loss_scale);
    }
  }
  return mean;
}

class Reference {
 public:
  explicit Reference(const Plan& plan) : plan_(plan) {
    for (size_t b = 0; b < plan.buckets().size(); ++b) {
      const ElementRange whole{0, plan.buckets()[b].numel};
      optimizers_.emplace_back(plan.optimizer(), whole, plan.GroupRanges(b, whole));
    }
  }

  void Apply(const StepOptions& step, Values mean, Values* params) {
    double squares = 0;
    for (size_t b = 0; b < mean.size(); ++b) {
      const StripeLayout& layout = plan_.buckets()[b].layout;
      for (int slot = 0; slot < layout.slots(); ++slot) {
        squares +=
            SumOfSquares(mean[b].data() + layout.range(slot).begin, layout.range(slot).size());
      }
    }
    const double scale = step.max_norm / (std::sqrt(squares) + 1e-6);
    for (size_t b = 0; b < mean.size(); ++b) {
      if (step.max_norm > 0 && scale < 1)
        Scale(mean[b].data(), mean[b].size(), static_cast<float>(scale));
      optimizers_[b].Apply((*params)[b].data(), mean[b].data(), step.lr, step.step);
    }
  }

 private:
  const Plan& plan_;
  std::vector<RangeOptimizer> optimizers_;
};

struct Case {
  int n;
  UpdateSite site;
  double max_norm;
  int lead;
  int connections;
  uint64_t seed;

  std::string Describe() const {
    return absl::StrCat("n ", n, site == UpdateSite::kOwner ? " owner" : " worker", " max_norm ",
                        max_norm, " lead ", lead, " connections ", connections, " seed ", seed);
  }
};

// Every rank launches its buckets when it likes, checks each result, and then scribbles over the
// gradient at once.
absl::Status Train(const Case& c, int steps) {
  const Plan plan = UnevenPlan(c.n);
  const int buckets = static_cast<int>(plan.buckets().size());
  std::map<int64_t, Values> expected;
  Values params;
  for (const BucketPlan& bucket : plan.buckets()) params.emplace_back(bucket.numel, 0.0f);
  Reference reference(plan);
  const auto options = [&](int64_t number) {
    StepOptions step;
    step.step = number;
    step.lr = 0.1 / static_cast<double>(number);
    step.max_norm = number == 2 ? 0 : c.max_norm;
    step.inverse_loss_scale = 0.3;
    return step;
  };
  for (int64_t s = 1; s <= steps; ++s) {
    Values mean = MeanOf(plan, s, options(s).inverse_loss_scale);
    if (c.site == UpdateSite::kWorker) {
      expected[s] = mean;
    } else {
      reference.Apply(options(s), mean, &params);
      expected[s] = params;
    }
  }
  SimulatedRing ring({plan, c.site, c.connections, c.lead, c.seed});
  struct RankState {
    int64_t step = 1;
    std::vector<SyncHandle> handles;
    bool finished = false;
  };
  std::vector<RankState> ranks(c.n);
  absl::Status wrong;
  const auto act = [&](int rank) {
    RankState& state = ranks[rank];
    const int launched = static_cast<int>(state.handles.size());
    if (state.finished) return false;
    if (launched < buckets) {
      for (int64_t i = 0; i < plan.buckets()[launched].numel; ++i) {
        ring.grad(rank, launched)[i] = Gradient(rank, state.step, launched, i);
      }
      state.handles.push_back(ring.engine(rank).Launch(options(state.step), launched));
      return true;
    }
    for (const SyncHandle& handle : state.handles) {
      if (!handle.done()) return false;
    }
    for (int b = 0; b < buckets; ++b) {
      wrong.Update(state.handles[b].Wait(Deadline::Now()));
      const float* found = c.site == UpdateSite::kWorker ? ring.grad(rank, b) : ring.param(rank, b);
      if (std::memcmp(found, expected[state.step][b].data(), plan.buckets()[b].bytes()) != 0) {
        wrong.Update(
            absl::DataLossError(absl::StrCat("rank ", rank, " bucket ", b, " step ", state.step,
                                             ": other bits than the reference's")));
      }
    }
    state.handles.clear();
    state.finished = state.step++ == steps;
    return true;
  };
  const absl::Status run = ring.Run(act, [&] {
    return !wrong.ok() ||
           std::all_of(ranks.begin(), ranks.end(), [](const RankState& r) { return r.finished; });
  });
  wrong.Update(run);
  for (int rank = 0; rank < c.n && wrong.ok(); ++rank) {
    const RingTraffic model = StepTraffic(plan, rank);
    const WireStats stats = ring.engine(rank).wire_stats();
    if (!(RingTraffic{stats.tx_bytes, stats.rx_bytes, stats.tx_messages, stats.rx_messages} ==
          RingTraffic{model.tx_bytes * steps, model.rx_bytes * steps, model.tx_messages * steps,
                      model.rx_messages * steps})) {
      wrong = absl::InternalError(absl::StrCat("rank ", rank, " sent ", stats.tx_bytes,
                                               ", the model says ", model.tx_bytes * steps));
    }
  }
  return wrong;
}

TEST(RingEngineTest, EndsWithTheReferencesBitsAndTheModelsBytesInAnyOrderOfEvents) {
  for (int n : {1, 2, 3, 4, 5, 8}) {
    for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
      for (double max_norm : {0.0, 100.0}) {
        for (uint64_t seed = 0; seed < 40; ++seed) {
          const Case c{
              n,   site, max_norm, 1 + static_cast<int>(seed % 3), 1 + static_cast<int>(seed % 4),
              seed};
          ASSERT_EQ(Train(c, 3), absl::OkStatus()) << c.Describe();
        }
      }
    }
  }
}

TEST(RingEngineTest, NeverGetsStuckInManyMoreOrders) {
  for (uint64_t seed = 1000; seed < 1400; ++seed) {
    const Case c{
        2 + static_cast<int>(seed % 4), seed % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner,
        seed % 3 == 0 ? 50.0 : 0.0,     1,
        1 + static_cast<int>(seed % 5), seed};
    ASSERT_EQ(Train(c, 4), absl::OkStatus()) << c.Describe();
  }
}

TEST(RingEngineTest, BroadcastCopiesRankZeroInAnyOrderOfEvents) {
  for (int n : {2, 3, 5}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Plan plan = UnevenPlan(n);
      SimulatedRing ring({plan, UpdateSite::kWorker, 2, 2, seed});
      std::vector<SyncHandle> handles;
      for (int rank = 0; rank < n; ++rank) {
        for (size_t b = 0; b < plan.buckets().size(); ++b) {
          for (int64_t i = 0; i < plan.buckets()[b].numel; ++i)
            ring.param(rank, b)[i] = Gradient(rank, 1, b, i);
        }
        handles.push_back(ring.engine(rank).broadcast().Begin());
      }
      EXPECT_FALSE(handles[0].done());
      ring.engine(0).broadcast().SendAll();
      ASSERT_EQ(ring.Run([](int) { return false; },
                         [&] {
                           return std::all_of(
                               handles.begin(), handles.end(),
                               [](const SyncHandle& handle) { return handle.done(); });
                         }),
                absl::OkStatus());
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_EQ(ring.engine(rank).wire_stats().tx_bytes, BroadcastTraffic(plan, rank).tx_bytes);
        for (size_t b = 0; b < plan.buckets().size(); ++b) {
          EXPECT_EQ(std::memcmp(ring.param(rank, b), ring.param(0, b), plan.buckets()[b].bytes()),
                    0);
        }
      }
    }
  }
}

TEST(RingEngineTest, AFailureResolvesEveryHandleAndRefusesLaterLaunches) {
  SimulatedRing ring({UnevenPlan(3), UpdateSite::kOwner, 2, 2, 1});
  StepOptions step;
  step.step = 1;
  const SyncHandle before = ring.engine(0).Launch(step, 0);
  ring.engine(0).Halt();
  const SyncHandle halted = ring.engine(0).Launch(step, 1);
  EXPECT_FALSE(before.done());
  EXPECT_FALSE(halted.done());
  ring.engine(0).Fail(absl::UnavailableError("rank 2 is lost"));
  const SyncHandle after = ring.engine(0).Launch(step, 2);
  for (const SyncHandle& handle : {before, halted, after}) {
    EXPECT_EQ(handle.Wait(Deadline::Now()), absl::UnavailableError("rank 2 is lost"));
  }
}

// A rank by itself, whose neighbours send what they like and whose link is as slow as it likes.
class LonelyRank {
 public:
  LonelyRank(const Plan& plan, UpdateSite site, uint32_t seed) : plan_(plan), random_(seed) {
    RingEngineOptions options;
    options.plan = plan;
    options.rank = kRank;
    options.update_site = site;
    options.connections = 2;
    options.lead = 2;
    options.buckets = *AllocateBuckets(plan);
    options.send = [this](int, OutgoingFrame frame) { sent_.push_back(std::move(frame)); };
    options.defer = [this](TaskQueue::Task task) { tasks_.push_back(std::move(task)); };
    options.report = [this](const absl::Status& status) { failure_.Update(status); };
    engine_ = std::make_shared<RingEngine>(std::move(options));
  }

  // Until something was refused, or for some hundred events.
  void Run() {
    for (int event = 0; event < 500 && failure_.ok(); ++event) {
      switch (random_() % 8) {
        case 0:
          if (open_.empty() || next_ == static_cast<int>(plan_.buckets().size())) Launch();
          break;
        case 1:
          Launch();
          break;
        case 2:
          if (!sent_.empty()) TakeAny(&sent_);
          break;
        case 3:
          if (!tasks_.empty()) TakeAny (&tasks_)();
          break;
        default:
          failure_.Update(SendFrame());
      }
    }
    engine_->Halt();
    while (!tasks_.empty()) TakeAny (&tasks_)();
    engine_->Fail(absl::UnavailableError("over"));
    sent_.clear();
    for (const SyncHandle& handle : open_) EXPECT_TRUE(handle.done());
  }

 private:
  static constexpr int kRank = 1;

  template <typename T>
  T TakeAny(std::vector<T>* from) {
    std::swap((*from)[random_() % from->size()], from->back());
    T taken = std::move(from->back());
    from->pop_back();
    return taken;
  }

  void Launch() {
    if (next_ == static_cast<int>(plan_.buckets().size())) {
      if (!std::all_of(open_.begin(), open_.end(), [](const auto& h) { return h.done(); })) return;
      open_.clear();
      next_ = 0;
    }
    if (next_ == 0) {
      ++step_.step;
      step_.max_norm = random_() % 2;
    }
    open_.push_back(engine_->Launch(step_, next_++));
    if (plan_.slots().parameters > 0) open_.push_back(engine_->gather()->Gather(next_ - 1));
  }

  // One of a good shape, whose time it need not be.
  absl::Status SendFrame() {
    constexpr proto::FrameHeader::Kind kKinds[] = {
        proto::FrameHeader::REDUCE, proto::FrameHeader::GATHER,  proto::FrameHeader::CREDIT,
        proto::FrameHeader::SHARD,  proto::FrameHeader::SQUARES, proto::FrameHeader::PARAMETERS};
    for (int attempt = 0; attempt < 100; ++attempt) {
      StepOptions step = step_;
      step.step = step_.step + static_cast<int64_t>(random_() % 2);
      const int bucket = static_cast<int>(random_() % plan_.buckets().size());
      const StripeLayout& layout = plan_.buckets()[bucket].layout;
      const ChunkId id = {bucket, static_cast<int>(random_() % layout.slots())};
      const proto::FrameHeader header =
          RingHeader(kKinds[random_() % 6], step, id, 1 + static_cast<int>(random_() % 2));
      const size_t sizes[] = {0, 4 * static_cast<size_t>(layout.range(id.slot).size()),
                              8 * OwnedChunks(plan_, id.slot % plan_.world_size()).size()};
      for (const size_t size : sizes) {
        if (!CheckRingFrame(plan_, kRank, header, size).ok()) continue;
        auto bytes = std::make_shared<const std::string>(size, '\0');
        return engine_->OnFrame(
            header, MakePayload({absl::MakeConstSpan(bytes->data(), bytes->size())}, bytes));
      }
    }
    return absl::OkStatus();
  }

  const Plan plan_;
  std::mt19937 random_;
  StepOptions step_;
  int next_ = 0;
  std::vector<SyncHandle> open_;
  std::vector<OutgoingFrame> sent_;
  std::vector<TaskQueue::Task> tasks_;
  absl::Status failure_;
  std::shared_ptr<RingEngine> engine_;
};

TEST(RingEngineTest, FramesThatALyingNeighbourSendsInAnyStateEndWithTheHandlesResolved) {
  BucketSlots slots;
  slots.parameters = 1;
  const std::vector<Plan> plans = {UnevenPlan(3), *UnevenPlan(3).WithSlots(slots)};
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const Plan& plan = plans[seed % 2];
    const bool owner = plan.slots().parameters > 0 || seed % 4 < 2;
    LonelyRank(plan, owner ? UpdateSite::kOwner : UpdateSite::kWorker, seed).Run();
  }
}

TEST(RingEngineTest, RanksThatDisagreeOnAStepAreToldApart) {
  SimulatedRing ring({UnevenPlan(2), UpdateSite::kOwner, 1, 2, 1});
  const auto act = [&, launched = std::vector<bool>(2)](int rank) mutable {
    if (launched[rank]) return false;
    launched[rank] = true;
    StepOptions step;
    step.step = 1;
    step.lr = rank == 0 ? 0.1 : 0.2;
    ring.engine(rank).Launch(step, 0);
    return true;
  };
  const absl::Status status = ring.Run(act, [] { return false; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "lr 0.1")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "lr 0.2")) << status;
}

}  // namespace
}  // namespace gradsync
