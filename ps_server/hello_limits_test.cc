// With small chunks, or many workers, a plan took three times the memory that a server thought it
// would.

#include "ps_server/hello_limits.h"

#include <malloc.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/sanitizers.h"
#include "core/plan/kinds.h"
#include "gtest/gtest.h"
#include "ps_server/async_shard.h"
#include "ps_server/parameter_shard.h"

namespace gradsync {
namespace {

class Deaf : public ShardEvents, public AsyncShardEvents {
 public:
  void OnFolded(int) override {}
  void OnResult(ChunkId, int64_t, std::shared_ptr<LentBuffer>) override {}
  void OnSquares(int64_t, std::vector<double>) override {}
  void OnApplied(int) override {}
  void OnAnswer(ChunkId, const ChunkClocks::Answer&, const std::shared_ptr<LentBuffer>&) override {}
  void OnDeferred(ChunkId, const ChunkClocks::Answer&) override {}
  void OnFinal(ChunkId, int, const std::shared_ptr<LentBuffer>&) override {}
};

struct Case {
  std::string name;
  int world_size;
  int64_t tensors;
  int64_t numel;  // of each
  int64_t chunk_bytes;
  std::vector<double> weights;
  proto::UpdateSite site;
  std::string consistency;
};

Plan PlanOf(const Case& c) {
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerKind::kAdam;
  optimizer.groups.resize(2);
  std::vector<TensorSpec> tensors;
  std::vector<int> members;
  for (int64_t t = 0; t < c.tensors; ++t) {
    members.push_back(static_cast<int>(t));
    tensors.push_back({absl::StrCat("t", t), {c.numel}, {1}, static_cast<int>(t % 2)});
  }
  return *Plan::FromBuckets(std::move(tensors), {members}, optimizer, c.world_size, c.chunk_bytes);
}

int64_t Allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

Payload Zeros(int64_t elements) {
  auto bytes = std::make_shared<const std::string>(4 * elements, '\0');
  return MakePayload({absl::MakeConstSpan(bytes->data(), bytes->size())}, bytes);
}

// A step of all ranks, after which there is state of the optimizer.
void Train(Shard& shard, const Plan& plan, const ShardMap& shards, int server) {
  StepOptions step;
  step.step = 1;
  step.lr = 0.1;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    for (const ChunkId id : PushOrder(plan, shards, server, rank)) {
      const int64_t size = plan.buckets()[id.bucket].layout.range(id.slot).size();
      ASSERT_EQ(shard.Push(rank, id, step, Zeros(size)), absl::OkStatus());
    }
  }
}

TEST(HelloLimitsTest, NoPlanTakesMoreThanWhatWasSaidOfIt) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's allocator keeps no such account";
  const std::vector<double> two = {1, 1};
  const std::vector<Case> cases = {
      {"large", 2, 4, 1000000, 1 << 20, {1}, proto::OWNER, ""},
      {"small chunks", 1, 1, 64000, 64, {1}, proto::OWNER, ""},
      {"small chunks at the workers", 2, 1, 64000, 64, {1}, proto::WORKER, ""},
      {"small chunks of one of two", 2, 1, 64000, 64, two, proto::OWNER, ""},
      {"many workers", 64, 1, 64000, 64, {1}, proto::OWNER, ""},
      {"small tensors", 2, 20000, 1, 1 << 16, {1}, proto::OWNER, ""},
      {"small tensors and chunks", 2, 8000, 16, 64, {1}, proto::OWNER, ""},
      {"asynchronous", 1, 1, 64000, 64, {1}, proto::OWNER, "asp"},
      {"many asynchronous workers", 64, 1, 64000, 64, {1}, proto::OWNER, "asp"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Plan plan = PlanOf(c);
    const ShardMap shards = *ShardMap::Create(plan, c.weights);
    proto::Terms terms;
    terms.set_world_size(c.world_size);
    terms.set_connections(1);
    terms.set_update_site(c.site);
    terms.set_consistency(c.consistency);
    for (const double weight : c.weights) terms.add_weights(weight);
    const int64_t said = ServerMemory(plan, terms, shards);
    Deaf events;
    const int64_t before = Allocated();
    const ServerPushOrder order(PushOrder(plan, shards, 0, 0), c.world_size);
    std::unique_ptr<Shard> shard;
    if (c.consistency.empty()) {
      shard = *ParameterShard::Create(plan, shards, 0, c.site, true, &events);
    } else {
      shard = *AsyncShard::Create(plan, shards, 0, *ParseConsistency(c.consistency), {}, &events);
    }
    Train(*shard, plan, shards, 0);
    const int64_t taken = Allocated() - before;
    EXPECT_LE(taken, said);
    EXPECT_GE(3 * taken, said) << "a plan that there is room for would be refused";
  }
}

proto::Terms WithWeights(int servers) {
  proto::Terms terms;
  for (int i = 0; i < servers; ++i) terms.add_weights(1 + i);
  return terms;
}

TEST(HelloLimitsTest, ALayoutThatTakesLongIsRefusedBeforeItIsMade) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  for (int b = 0; b < 2000; ++b) {
    tensors.push_back({absl::StrCat("t", b), {16}, {1}, 0});
    buckets.push_back({b});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  const Plan plan = *Plan::FromBuckets(tensors, buckets, optimizer, 1, 64);
  constexpr int64_t kEnough = int64_t{1} << 40;
  EXPECT_EQ(CheckLayout(plan, WithWeights(1), kEnough), absl::OkStatus());
  EXPECT_EQ(CheckLayout(plan, WithWeights(1000), kEnough), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(CheckLayout(plan, WithWeights(40000), kEnough)));
  EXPECT_TRUE(absl::IsResourceExhausted(CheckLayout(plan, WithWeights(1), 1000)));
}

}  // namespace
}  // namespace gradsync
