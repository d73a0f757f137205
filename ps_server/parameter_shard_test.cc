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

std::vector<float> Gradient(ChunkId id, int rank, int64_t step, size_t size) {
  std::mt19937 random(static_cast<uint32_t>(1000 * id.bucket + 10 * id.slot + rank) +
                      77 * static_cast<uint32_t>(step));
  std::vector<float> values(size);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f, static_cast<int>(random() % 9));
  }
  return values;
}

std::vector<float> Mean(const Plan& plan, ChunkId id, int64_t step, float scale) {
  const StripeLayout& layout = plan.buckets()[id.bucket].layout;
  const int n = layout.world_size();
  const int chunk = layout.chunk_of(id.slot);
  const size_t size = layout.range(id.slot).size();
  std::vector<float> sum = Gradient(id, FoldRank(chunk, 0, n), step, size);
  for (int position = 1; position < n; ++position) {
    const std::vector<float> next = Gradient(id, FoldRank(chunk, position, n), step, size);
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
  void OnResult(ChunkId id, int64_t, std::shared_ptr<LentBuffer> values) override {
    MutexLock lock(&mutex);
    results[{id.bucket, id.slot}].assign(values->data(), values->data() + values->numel());
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

  size_t Size(ChunkId id) const { return plan.buckets()[id.bucket].layout.range(id.slot).size(); }

  absl::Status Push(int rank, ChunkId id, const StepOptions& step) {
    return shard->Push(rank, id, step, Split(Gradient(id, rank, step.step, Size(id))));
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
        for (ChunkId id : shard.shard->chunk_ids()) {
          for (int rank : arrival) ASSERT_EQ(shard.Push(rank, id, step), absl::OkStatus());
          EXPECT_EQ((shard.events.results[{id.bucket, id.slot}]), Mean(shard.plan, id, s, 0.3f));
        }
        EXPECT_TRUE(shard.shard->idle());
      }
      const int ids = static_cast<int>(shard.shard->chunk_ids().size());
      for (int rank = 0; rank < n; ++rank) EXPECT_EQ(shard.events.folded[rank], 3 * ids);
    } while (std::next_permutation(arrival.begin(), arrival.end()));
  }
}

TEST(ParameterShard, CreditsAContributionOnlyWhenItIsFolded) {
  Shard shard(3, proto::WORKER);
  const ChunkId id = shard.shard->chunk_ids()[0];  // chunk 0 folds ranks 1, 2, 0
  ASSERT_EQ(shard.Push(0, id, Step(1)), absl::OkStatus());
  ASSERT_EQ(shard.Push(2, id, Step(1)), absl::OkStatus());
  EXPECT_TRUE(shard.events.folded.empty());
  ASSERT_EQ(shard.Push(1, id, Step(1)), absl::OkStatus());
  EXPECT_EQ(shard.events.folded, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(ParameterShard, TheFirstContributionWaitsForTheSecondIfItMay) {
  for (bool holds_first : {false, true}) {
    Shard shard(3, proto::WORKER, holds_first);
    const ChunkId id = shard.shard->chunk_ids()[0];  // chunk 0 folds ranks 1, 2, 0
    ASSERT_EQ(shard.Push(1, id, Step(1)), absl::OkStatus());
    EXPECT_EQ(shard.events.folded.size(), holds_first ? 0u : 1u);
    ASSERT_EQ(shard.Push(2, id, Step(1)), absl::OkStatus());
    EXPECT_EQ(shard.events.folded, (std::map<int, int>{{1, 1}, {2, 1}}));
  }
}

TEST(ParameterShard, ChunksOfManyBlocksGiveTheSameBits) {
  const Plan plan = *Plan::FromBuckets({{"a", {20011}, {1}, 0}}, {{0}}, Momentum(),
                                       /*world_size=*/3, /*chunk_bytes=*/25600);
  Recorder events;
  const auto shard = *ParameterShard::Create(plan, *ShardMap::Create(plan, {1}), 0, proto::WORKER,
                                             /*holds_first=*/true, &events);
  for (ChunkId id : shard->chunk_ids()) {
    const size_t size = plan.buckets()[0].layout.range(id.slot).size();
    for (int rank : {2, 0, 1}) {
      ASSERT_EQ(shard->Push(rank, id, Step(1), Split(Gradient(id, rank, 1, size))),
                absl::OkStatus());
    }
    EXPECT_EQ((events.results[{0, id.slot}]), Mean(plan, id, 1, 1.0f));
  }
}

TEST(ParameterShard, ManyThreadsGiveTheSameBits) {
  constexpr int kRanks = 4;
  Shard shard(kRanks, proto::WORKER);
  for (int64_t s = 1; s <= 50; ++s) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        for (ChunkId id : shard.shard->chunk_ids()) {
          EXPECT_EQ(shard.Push(rank, id, Step(s)), absl::OkStatus());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (ChunkId id : shard.shard->chunk_ids()) {
      ASSERT_EQ((shard.events.results[{id.bucket, id.slot}]), Mean(shard.plan, id, s, 1.0f));
    }
  }
}

TEST(ParameterShard, NeverWritesToABufferThatIsLent) {
  for (proto::UpdateSite site : {proto::WORKER, proto::OWNER}) {
    Shard shard(1, site);
    const ChunkId id = shard.shard->chunk_ids()[0];
    std::shared_ptr<LentBuffer> lent;
    Release loan;
    std::vector<float> before;
    for (int64_t s = 1; s <= 4; ++s) {
      for (ChunkId each : shard.shard->chunk_ids()) {
        ASSERT_EQ(shard.Push(0, each, Step(s)), absl::OkStatus());
        if (s == 1 && each == id) {
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
  for (ChunkId id : shard.shard->chunk_ids()) {
    const std::vector<float> start = Gradient(id, 9, 0, shard.Size(id));
    ASSERT_TRUE(shard.shard->SetParameters(id, Split(start)).ok());
    params[{id.bucket, id.slot}] = start;
  }
  for (int64_t s = 1; s <= 3; ++s) {
    for (ChunkId id : shard.shard->chunk_ids()) {
      for (int rank : {0, 1}) ASSERT_EQ(shard.Push(rank, id, Step(s)), absl::OkStatus());
      std::vector<float>& param = params[{id.bucket, id.slot}];
      std::vector<float>& buffer = momentum[{id.bucket, id.slot}];
      const std::vector<float> mean = Mean(shard.plan, id, s, 1.0f);
      buffer.resize(mean.size());
      // Padding belongs to no group and stays.
      const size_t real = id.bucket == 1 ? 3 : std::min<size_t>(16, 100 - 16 * id.slot);
      for (size_t i = 0; i < real; ++i) {
        volatile float decayed = buffer[i] * 0.9f;
        buffer[i] = s == 1 ? mean[i] : decayed + mean[i];
        volatile float change = -0.1f * buffer[i];
        param[i] = param[i] + change;
      }
      EXPECT_EQ((shard.events.results[{id.bucket, id.slot}]), param);
    }
  }
}

TEST(ParameterShard, ClippingHoldsAllMeansUntilEveryNormIsThere) {
  Shard shard(2, proto::OWNER);
  StepOptions step = Step(1);
  step.max_norm = 0.5;
  for (ChunkId id : shard.shard->chunk_ids()) {
    for (int rank : {0, 1}) ASSERT_EQ(shard.Push(rank, id, step), absl::OkStatus());
  }
  EXPECT_TRUE(shard.events.results.empty());
  ASSERT_EQ(shard.events.squares.size(), shard.shard->chunk_ids().size());
  double sum = 0;
  for (double squares : shard.events.squares) sum += squares;
  ASSERT_EQ(shard.shard->Norm(0, 1, std::sqrt(sum)), absl::OkStatus());
  EXPECT_TRUE(shard.events.results.empty());
  ASSERT_EQ(shard.shard->Norm(1, 1, std::sqrt(sum)), absl::OkStatus());
  EXPECT_EQ(shard.events.results.size(), shard.shard->chunk_ids().size());
  EXPECT_TRUE(shard.shard->idle());
}

// A server whose shard took longer than the failure timeout looked stuck, though it worked: a frame
// counted when it came and when it was done with.
TEST(ParameterShard, CallsThatWorkOnAllChunksCountEach) {
  Shard shard(1, proto::OWNER);
  const auto activity = std::make_shared<Activity>();
  shard.shard->CountIn(activity);
  const auto chunks = static_cast<int64_t>(shard.shard->chunk_ids().size());
  StepOptions step = Step(1);
  step.max_norm = 0.5;
  for (ChunkId id : shard.shard->chunk_ids()) {
    ASSERT_EQ(shard.Push(0, id, step), absl::OkStatus());
  }
  EXPECT_EQ(activity->done(), 0);
  ASSERT_EQ(shard.shard->Norm(0, 1, 1.0), absl::OkStatus());
  EXPECT_EQ(activity->done(), chunks);
  ASSERT_TRUE(shard.shard->ExportState().ok());
  EXPECT_EQ(activity->done(), 2 * chunks);
}

TEST(ParameterShard, NormsThatDifferAreAnErrorThatNamesBothRanks) {
  Shard shard(2, proto::OWNER);
  StepOptions step = Step(1);
  step.max_norm = 0.5;
  ExpectInvalid(shard.shard->Norm(0, 1, 1.0), "gave a norm");
  for (ChunkId id : shard.shard->chunk_ids()) {
    for (int rank : {0, 1}) ASSERT_EQ(shard.Push(rank, id, step), absl::OkStatus());
  }
  ASSERT_EQ(shard.shard->Norm(0, 1, 1.0), absl::OkStatus());
  ExpectInvalid(shard.shard->Norm(1, 1, std::nextafter(1.0, 2.0)),
                "rank 0 has 1, rank 1 has 1.0000");
}

TEST(ParameterShard, RanksThatDisagreeAboutAStepAreNamedWithTheirValues) {
  Shard shard(2, proto::OWNER);
  const ChunkId id = shard.shard->chunk_ids()[0];
  ASSERT_EQ(shard.Push(0, id, Step(1)), absl::OkStatus());
  StepOptions other = Step(1);
  other.lr = 0.2;
  const absl::Status status = shard.Push(1, id, other);
  ExpectInvalid(status, "rank 0 pushed step 1, lr 0.1");
  ExpectInvalid(status, "rank 1 pushed step 1, lr 0.2");
  ExpectInvalid(shard.Push(1, id, Step(2)), "step 2");
}

TEST(ParameterShard, WrongPushesAreRefused) {
  Shard shard(2, proto::WORKER);
  const ChunkId id = shard.shard->chunk_ids()[0];
  ExpectInvalid(shard.shard->Push(0, id, Step(1), Split({1, 2, 3})), "expected 64 bytes");
  ExpectInvalid(shard.shard->Push(0, {0, 10000}, Step(1), Split({1, 2})), "does not own");
  ExpectInvalid(shard.shard->Push(0, {-1, -1}, Step(1), Split({1, 2})), "does not own");
  ExpectInvalid(shard.Push(0, id, Step(0)), "expected one after step 0");
  ASSERT_EQ(shard.Push(0, id, Step(1)), absl::OkStatus());
  ExpectInvalid(shard.Push(0, id, Step(1)), "twice");
}

TEST(ParameterShard, ParametersAreRefusedInTheMiddleOfAFold) {
  Shard shard(2, proto::OWNER);
  const ChunkId id = shard.shard->chunk_ids()[0];
  ASSERT_EQ(shard.Push(0, id, Step(1)), absl::OkStatus());
  const auto set = shard.shard->SetParameters(id, Split(std::vector<float>(16)));
  EXPECT_EQ(set.status().code(), absl::StatusCode::kFailedPrecondition) << set.status();
  EXPECT_EQ(shard.shard->ExportState().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ParameterShard, ExportedStateImportsIntoAnotherShard) {
  Shard from(1, proto::OWNER);
  Shard to(1, proto::OWNER);
  EXPECT_TRUE((*from.shard->ExportState())->pieces.empty());
  for (ChunkId id : from.shard->chunk_ids()) {
    ASSERT_EQ(from.Push(0, id, Step(1)), absl::OkStatus());
  }
  const std::shared_ptr<const ShardState> state = *from.shard->ExportState();
  EXPECT_EQ(state->step, 1);
  EXPECT_EQ(state->pieces.size(), from.shard->chunk_ids().size());
  EXPECT_EQ(*from.shard->ExportState(), state);  // shared while nothing changes
  for (const ShardState::Piece& piece : state->pieces) {
    const std::vector<float> values(piece.values->data(),
                                    piece.values->data() + piece.values->numel());
    ASSERT_EQ(to.shard->ImportPiece(piece.name, piece.chunk, Split(values)), absl::OkStatus());
  }
  ASSERT_EQ(to.shard->FinishImport(1, state->pieces.size()), absl::OkStatus());
  const std::shared_ptr<const ShardState> back = *to.shard->ExportState();
  ASSERT_EQ(back->pieces.size(), state->pieces.size());
  for (size_t i = 0; i < back->pieces.size(); ++i) {
    EXPECT_EQ(back->pieces[i].values->bytes(), state->pieces[i].values->bytes());
  }
  ExpectInvalid(to.Push(0, to.shard->chunk_ids()[0], Step(1)), "after step 1");
  ASSERT_EQ(to.shard->FinishImport(0, 0), absl::OkStatus());
  EXPECT_TRUE((*to.shard->ExportState())->pieces.empty());
  ExpectInvalid(to.shard->FinishImport(0, 7), "expected 7 pieces");
  ExpectInvalid(
      to.shard->ImportPiece("exp_avg", to.shard->chunk_ids()[0], Split(std::vector<float>(16))),
      "exp_avg");
}

}  // namespace
}  // namespace gradsync
