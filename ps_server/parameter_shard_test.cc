#include "ps_server/parameter_shard.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

OptimizerSpec Momentum() {
  OptimizerSpec spec;
  spec.groups.resize(1);
  spec.groups[0].momentum = 0.9;
  return spec;
}

// One bucket of 100 elements in chunks of 16, and one smaller than the number of workers.
Plan SmallPlan(int world_size) {
  return *Plan::FromBuckets({{"a", {100}, {1}, 0}, {"b", {3}, {1}, 0}}, {{0}, {1}}, Momentum(),
                            world_size, /*chunk_bytes=*/64);
}

// A payload in three parts, cut inside a float, in memory of its own.
Payload Split(const std::vector<float>& values) {
  auto bytes = std::make_shared<std::string>(reinterpret_cast<const char*>(values.data()),
                                             values.size() * sizeof(float));
  const absl::Span<const char> all(bytes->data(), bytes->size());
  return MakePayload({all.first(1), all.subspan(1, 5), all.subspan(6)}, bytes);
}

std::vector<float> Gradient(SegmentId segment, int rank, int64_t step, size_t size) {
  std::mt19937 random(static_cast<uint32_t>(1000 * segment.bucket + 10 * segment.slot + rank) +
                      77 * static_cast<uint32_t>(step));
  std::vector<float> values(size);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f, static_cast<int>(random() % 9));
  }
  return values;
}

std::vector<float> Mean(const Plan& plan, SegmentId segment, int64_t step, float scale) {
  const StripeLayout& layout = plan.buckets()[segment.bucket].layout;
  const int n = layout.world_size();
  const int chunk = layout.chunk_of(segment.slot);
  const size_t size = layout.range(segment.slot).size();
  std::vector<float> sum = Gradient(segment, FoldRank(chunk, 0, n), step, size);
  for (int position = 1; position < n; ++position) {
    const std::vector<float> next = Gradient(segment, FoldRank(chunk, position, n), step, size);
    for (size_t i = 0; i < size; ++i) sum[i] += next[i];
  }
  for (float& x : sum) x = (x * (1.0f / static_cast<float>(n))) * scale;
  return sum;
}

// Keeps what the shard says.
class Recorder : public ShardEvents {
 public:
  void OnFolded(int rank) override {
    MutexLock lock(&mutex);
    ++folded[rank];
  }
  void OnResult(SegmentId segment, int64_t, std::shared_ptr<LentBuffer> values) override {
    MutexLock lock(&mutex);
    results[{segment.bucket, segment.slot}].assign(values->data(),
                                                   values->data() + values->numel());
    last = std::move(values);
  }
  void OnSquares(int64_t, std::vector<double> sums) override {
    MutexLock lock(&mutex);
    squares = std::move(sums);
  }

  Mutex mutex;
  std::map<int, int> folded;
  std::map<std::pair<int, int>, std::vector<float>> results;
  std::shared_ptr<LentBuffer> last;
  std::vector<double> squares;
};

struct Shard {
  explicit Shard(int world_size, proto::UpdateSite site, bool holds_first = true)
      : plan(SmallPlan(world_size)),
        shard(*ParameterShard::Create(plan, *ShardMap::Create(plan, {1}), 0, site, holds_first,
                                      &events)) {}

  size_t Size(SegmentId segment) const {
    return plan.buckets()[segment.bucket].layout.range(segment.slot).size();
  }

  absl::Status Push(int rank, SegmentId segment, const StepOptions& step) {
    return shard->Push(rank, segment, step,
                       Split(Gradient(segment, rank, step.step, Size(segment))));
  }

  Recorder events;
  Plan plan;
  std::unique_ptr<ParameterShard> shard;
};

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

void ExpectInvalid(const absl::Status& status, absl::string_view text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
}

TEST(ParameterShard, FoldsInThePlansOrderWhateverTheOrderOfArrival) {
  for (int n = 1; n <= 4; ++n) {
    std::vector<int> arrival(n);
    for (int i = 0; i < n; ++i) arrival[i] = i;
    do {
      Shard shard(n, proto::WORKER, /*holds_first=*/arrival[0] % 2 == 0);
      for (int64_t s = 1; s <= 3; ++s) {
        StepOptions step = Step(s);
        step.inverse_loss_scale = 0.3;
        for (SegmentId segment : shard.shard->segments()) {
          for (int rank : arrival) ASSERT_EQ(shard.Push(rank, segment, step), absl::OkStatus());
          EXPECT_EQ((shard.events.results[{segment.bucket, segment.slot}]),
                    Mean(shard.plan, segment, s, 0.3f));
        }
        EXPECT_TRUE(shard.shard->idle());
      }
      const int segments = static_cast<int>(shard.shard->segments().size());
      for (int rank = 0; rank < n; ++rank) EXPECT_EQ(shard.events.folded[rank], 3 * segments);
    } while (std::next_permutation(arrival.begin(), arrival.end()));
  }
}

TEST(ParameterShard, CreditsAContributionOnlyWhenItIsFolded) {
  Shard shard(3, proto::WORKER);
  const SegmentId segment = shard.shard->segments()[0];  // chunk 0 folds ranks 1, 2, 0
  ASSERT_EQ(shard.Push(0, segment, Step(1)), absl::OkStatus());
  ASSERT_EQ(shard.Push(2, segment, Step(1)), absl::OkStatus());
  EXPECT_TRUE(shard.events.folded.empty());
  ASSERT_EQ(shard.Push(1, segment, Step(1)), absl::OkStatus());
  EXPECT_EQ(shard.events.folded, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(ParameterShard, TheFirstContributionWaitsForTheSecondIfItMay) {
  for (bool holds_first : {false, true}) {
    Shard shard(3, proto::WORKER, holds_first);
    const SegmentId segment = shard.shard->segments()[0];  // chunk 0 folds ranks 1, 2, 0
    ASSERT_EQ(shard.Push(1, segment, Step(1)), absl::OkStatus());
    EXPECT_EQ(shard.events.folded.size(), holds_first ? 0u : 1u);
    ASSERT_EQ(shard.Push(2, segment, Step(1)), absl::OkStatus());
    EXPECT_EQ(shard.events.folded, (std::map<int, int>{{1, 1}, {2, 1}}));
  }
}

TEST(ParameterShard, ChunksOfManyBlocksGiveTheSameBits) {
  const Plan plan = *Plan::FromBuckets({{"a", {20011}, {1}, 0}}, {{0}}, Momentum(),
                                       /*world_size=*/3, /*chunk_bytes=*/25600);
  Recorder events;
  const auto shard = *ParameterShard::Create(plan, *ShardMap::Create(plan, {1}), 0, proto::WORKER,
                                             /*holds_first=*/true, &events);
  for (SegmentId segment : shard->segments()) {
    const size_t size = plan.buckets()[0].layout.range(segment.slot).size();
    for (int rank : {2, 0, 1}) {
      ASSERT_EQ(shard->Push(rank, segment, Step(1), Split(Gradient(segment, rank, 1, size))),
                absl::OkStatus());
    }
    EXPECT_EQ((events.results[{0, segment.slot}]), Mean(plan, segment, 1, 1.0f));
  }
}

TEST(ParameterShard, ManyThreadsGiveTheSameBits) {
  constexpr int kRanks = 4;
  Shard shard(kRanks, proto::WORKER);
  for (int64_t s = 1; s <= 50; ++s) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        for (SegmentId segment : shard.shard->segments()) {
          EXPECT_EQ(shard.Push(rank, segment, Step(s)), absl::OkStatus());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (SegmentId segment : shard.shard->segments()) {
      ASSERT_EQ((shard.events.results[{segment.bucket, segment.slot}]),
                Mean(shard.plan, segment, s, 1.0f));
    }
  }
}

TEST(ParameterShard, NeverWritesToABufferThatIsLent) {
  for (proto::UpdateSite site : {proto::WORKER, proto::OWNER}) {
    Shard shard(1, site);
    const SegmentId segment = shard.shard->segments()[0];
    std::shared_ptr<LentBuffer> lent;
    Release loan;
    std::vector<float> before;
    for (int64_t s = 1; s <= 4; ++s) {
      for (SegmentId each : shard.shard->segments()) {
        ASSERT_EQ(shard.Push(0, each, Step(s)), absl::OkStatus());
        if (s == 1 && each == segment) {
          lent = shard.events.last;
          loan = lent->Lend();
          before.assign(lent->data(), lent->data() + lent->numel());
        }
      }
    }
    EXPECT_EQ(std::vector<float>(lent->data(), lent->data() + lent->numel()), before);
    loan.Run();
  }
}

TEST(ParameterShard, UpdatesAtTheOwnerLikeAPlainOptimizer) {
  Shard shard(2, proto::OWNER);
  std::map<std::pair<int, int>, std::vector<float>> params, momentum;
  for (SegmentId segment : shard.shard->segments()) {
    const std::vector<float> start = Gradient(segment, 9, 0, shard.Size(segment));
    ASSERT_TRUE(shard.shard->SetParameters(segment, Split(start)).ok());
    params[{segment.bucket, segment.slot}] = start;
  }
  for (int64_t s = 1; s <= 3; ++s) {
    for (SegmentId segment : shard.shard->segments()) {
      for (int rank : {0, 1}) ASSERT_EQ(shard.Push(rank, segment, Step(s)), absl::OkStatus());
      std::vector<float>& param = params[{segment.bucket, segment.slot}];
      std::vector<float>& buffer = momentum[{segment.bucket, segment.slot}];
      const std::vector<float> mean = Mean(shard.plan, segment, s, 1.0f);
      buffer.resize(mean.size());
      // Padding belongs to no group and stays.
      const size_t real = segment.bucket == 1 ? 3 : std::min<size_t>(16, 100 - 16 * segment.slot);
      for (size_t i = 0; i < real; ++i) {
        volatile float decayed = buffer[i] * 0.9f;
        buffer[i] = s == 1 ? mean[i] : decayed + mean[i];
        volatile float change = -0.1f * buffer[i];
        param[i] = param[i] + change;
      }
      EXPECT_EQ((shard.events.results[{segment.bucket, segment.slot}]), param);
    }
  }
}

TEST(ParameterShard, ClippingHoldsAllMeansUntilEveryNormIsThere) {
  Shard shard(2, proto::OWNER);
  StepOptions step = Step(1);
  step.max_norm = 0.5;
  for (SegmentId segment : shard.shard->segments()) {
    for (int rank : {0, 1}) ASSERT_EQ(shard.Push(rank, segment, step), absl::OkStatus());
  }
  EXPECT_TRUE(shard.events.results.empty());
  ASSERT_EQ(shard.events.squares.size(), shard.shard->segments().size());
  double sum = 0;
  for (double squares : shard.events.squares) sum += squares;
  ASSERT_EQ(shard.shard->Norm(0, 1, std::sqrt(sum)), absl::OkStatus());
  EXPECT_TRUE(shard.events.results.empty());
  ASSERT_EQ(shard.shard->Norm(1, 1, std::sqrt(sum)), absl::OkStatus());
  EXPECT_EQ(shard.events.results.size(), shard.shard->segments().size());
  EXPECT_TRUE(shard.shard->idle());
}

TEST(ParameterShard, NormsThatDifferAreAnErrorThatNamesBothRanks) {
  Shard shard(2, proto::OWNER);
  StepOptions step = Step(1);
  step.max_norm = 0.5;
  ExpectInvalid(shard.shard->Norm(0, 1, 1.0), "gave a norm");
  for (SegmentId segment : shard.shard->segments()) {
    for (int rank : {0, 1}) ASSERT_EQ(shard.Push(rank, segment, step), absl::OkStatus());
  }
  ASSERT_EQ(shard.shard->Norm(0, 1, 1.0), absl::OkStatus());
  ExpectInvalid(shard.shard->Norm(1, 1, std::nextafter(1.0, 2.0)),
                "rank 0 has 1, rank 1 has 1.0000");
}

TEST(ParameterShard, RanksThatDisagreeAboutAStepAreNamedWithTheirValues) {
  Shard shard(2, proto::OWNER);
  const SegmentId segment = shard.shard->segments()[0];
  ASSERT_EQ(shard.Push(0, segment, Step(1)), absl::OkStatus());
  StepOptions other = Step(1);
  other.lr = 0.2;
  const absl::Status status = shard.Push(1, segment, other);
  ExpectInvalid(status, "rank 0 pushed step 1, lr 0.1");
  ExpectInvalid(status, "rank 1 pushed step 1, lr 0.2");
  ExpectInvalid(shard.Push(1, segment, Step(2)), "step 2");
}

TEST(ParameterShard, WrongPushesAreRefused) {
  Shard shard(2, proto::WORKER);
  const SegmentId segment = shard.shard->segments()[0];
  ExpectInvalid(shard.shard->Push(0, segment, Step(1), Split({1, 2, 3})), "expected 64 bytes");
  ExpectInvalid(shard.shard->Push(0, {0, 10000}, Step(1), Split({1, 2})), "does not own");
  ExpectInvalid(shard.shard->Push(0, {-1, -1}, Step(1), Split({1, 2})), "does not own");
  ExpectInvalid(shard.Push(0, segment, Step(0)), "expected one after step 0");
  ASSERT_EQ(shard.Push(0, segment, Step(1)), absl::OkStatus());
  ExpectInvalid(shard.Push(0, segment, Step(1)), "twice");
}

TEST(ParameterShard, ParametersAreRefusedInTheMiddleOfAFold) {
  Shard shard(2, proto::OWNER);
  const SegmentId segment = shard.shard->segments()[0];
  ASSERT_EQ(shard.Push(0, segment, Step(1)), absl::OkStatus());
  const auto set = shard.shard->SetParameters(segment, Split(std::vector<float>(16)));
  EXPECT_EQ(set.status().code(), absl::StatusCode::kFailedPrecondition) << set.status();
  EXPECT_EQ(shard.shard->ExportState().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ParameterShard, ExportedStateImportsIntoAnotherShard) {
  Shard from(1, proto::OWNER);
  Shard to(1, proto::OWNER);
  EXPECT_TRUE((*from.shard->ExportState())->pieces.empty());
  for (SegmentId segment : from.shard->segments()) {
    ASSERT_EQ(from.Push(0, segment, Step(1)), absl::OkStatus());
  }
  const std::shared_ptr<const ShardState> state = *from.shard->ExportState();
  EXPECT_EQ(state->step, 1);
  EXPECT_EQ(state->pieces.size(), from.shard->segments().size());
  EXPECT_EQ(*from.shard->ExportState(), state);  // shared while nothing changes
  for (const ShardState::Piece& piece : state->pieces) {
    const std::vector<float> values(piece.values->data(),
                                    piece.values->data() + piece.values->numel());
    ASSERT_EQ(to.shard->ImportPiece(piece.name, piece.segment, Split(values)), absl::OkStatus());
  }
  ASSERT_EQ(to.shard->FinishImport(1, state->pieces.size()), absl::OkStatus());
  const std::shared_ptr<const ShardState> back = *to.shard->ExportState();
  ASSERT_EQ(back->pieces.size(), state->pieces.size());
  for (size_t i = 0; i < back->pieces.size(); ++i) {
    EXPECT_EQ(back->pieces[i].values->bytes(), state->pieces[i].values->bytes());
  }
  ExpectInvalid(to.Push(0, to.shard->segments()[0], Step(1)), "after step 1");
  ASSERT_EQ(to.shard->FinishImport(0, 0), absl::OkStatus());
  EXPECT_TRUE((*to.shard->ExportState())->pieces.empty());
  ExpectInvalid(to.shard->FinishImport(0, 7), "expected 7 pieces");
  ExpectInvalid(
      to.shard->ImportPiece("exp_avg", to.shard->segments()[0], Split(std::vector<float>(16))),
      "exp_avg");
}

}  // namespace
}  // namespace gradsync
