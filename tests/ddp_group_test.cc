// DdpEngine with peers. A rank is a thread.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "gmock/gmock.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gradsync/ddp/tiny_module.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "tests/threads_sync.h"
#include "torch/optim/sgd.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

// Copies values only, so that two modules start alike.
void CopyParameters(const torch::nn::Module& from, const torch::nn::Module& to) {
  c10::NoGradGuard no_grad;
  for (const auto& item : from.named_parameters()) {
    to.named_parameters()[item.key()].copy_(item.value());
  }
}

void ExpectClose(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    EXPECT_TRUE(item.value().allclose(b.named_parameters()[item.key()], 1e-5, 1e-6)) << item.key();
  }
}

OptimizerSpec NesterovSpec() {
  OptimizerSpec spec = {OptimizerKind::kSgd, {{}}};
  spec.groups[0].momentum = 0.9;
  spec.groups[0].nesterov = true;
  spec.groups[0].weight_decay = 0.01;
  return spec;
}

torch::optim::SGDOptions NesterovTorch() {
  return torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01);
}

// Runs `body(rank, sync, side_channel)` for each of two ranks on a thread of its own.
void RunTwoRanks(const std::function<void(int, GradientSync*, SideChannel*)>& body) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  const auto syncs = CreateThreadsSync(2);
  RunRanks(2, [&](int rank) {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = 2;
    group.run_id = "test";
    group.store = store;
    SideChannel side_channel(group, "ddp");
    body(rank, syncs[rank].get(), &side_channel);
  });
}

DdpEngineOptions SmallBuckets() {
  DdpEngineOptions options;
  options.optimizer = NesterovSpec();
  options.plan.first_bucket_bytes = options.plan.bucket_bytes = 128;
  options.timeout = absl::Seconds(30);
  return options;
}

TEST(DdpGroupTest, TwoRanksTrainAsOneOnBothHalvesOfTheBatch) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({4, 8, 4});
  TinyModule reference;
  std::vector<std::string> hashes(2);
  std::vector<std::shared_ptr<TinyModule>> modules = {std::make_shared<TinyModule>(),
                                                      std::make_shared<TinyModule>()};
  CopyParameters(*modules[0], reference);  // rank 0's values are everybody's
  modules[0]->forwards.fill_(5);
  RunTwoRanks([&](int rank, GradientSync* sync, SideChannel* side_channel) {
    const std::shared_ptr<TinyModule>& module = modules[rank];
    DdpEngineOptions options = SmallBuckets();
    options.forward_backward = [&] { module->Loss(at::ones({2, 4})).backward(); };
    auto ddp = DdpEngine::Create(module, sync, side_channel, std::move(options));
    ASSERT_TRUE(ddp.ok()) << ddp.status();
    EXPECT_EQ(module->forwards.item<float>(), 5);
    for (int64_t step = 1; step <= 4; ++step) {
      ASSERT_TRUE((*ddp)->BeginStep({step, 0.1, 0, 1}).ok());
      module->Loss(x[step - 1].slice(0, 4 * rank, 4 * rank + 4)).backward();
      const absl::Status status = (*ddp)->FinishStep(Soon());
      ASSERT_TRUE(status.ok()) << status;
    }
    if (rank == 0) module->forwards.fill_(77);
    EXPECT_TRUE((*ddp)->BroadcastBuffers(Soon()).ok());
    hashes[rank] = (*ddp)->ParamsSha256();
  });
  EXPECT_EQ(modules[1]->forwards.item<float>(), 77);
  EXPECT_EQ(hashes[0], hashes[1]);
  torch::optim::SGD sgd(reference.parameters(), NesterovTorch());
  for (int64_t step = 0; step < 4; ++step) {
    sgd.zero_grad();
    reference.Loss(x[step]).backward();
    sgd.step();
  }
  ExpectClose(*modules[0], reference);
}

TEST(DdpGroupTest, WhenOneRanksModuleIsRefusedAllReturn) {
  RunTwoRanks([&](int rank, GradientSync* sync, SideChannel* side_channel) {
    auto module = std::make_shared<TinyModule>();
    if (rank == 1) module->to(at::kDouble);
    const absl::Status status =
        DdpEngine::Create(module, sync, side_channel, SmallBuckets()).status();
    if (rank == 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("first_weight")));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
  });
}

TEST(DdpGroupTest, RanksWithOtherBuffersAreRefused) {
  RunTwoRanks([&](int rank, GradientSync* sync, SideChannel* side_channel) {
    auto module = std::make_shared<TinyModule>();
    if (rank == 1) module->register_buffer("extra", at::zeros({2}));
    const absl::Status status =
        DdpEngine::Create(module, sync, side_channel, SmallBuckets()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("extra Float [2]")));
  });
}

// More than 64 MiB of them, the most that the store takes as one value, ended Create().
TEST(DdpGroupTest, LargeFrozenParametersAndBuffersAreRank0s) {
  RunTwoRanks([&](int rank, GradientSync* sync, SideChannel* side_channel) {
    auto module = std::make_shared<TinyModule>();
    const at::Tensor frozen = module->register_parameter("frozen", at::full({9 << 20}, 1.0 + rank),
                                                         /*requires_grad=*/false);
    const at::Tensor buffer = module->register_buffer("large", at::full({9 << 20}, 3.0 + rank));
    const auto ddp = DdpEngine::Create(module, sync, side_channel, SmallBuckets());
    ASSERT_TRUE(ddp.ok()) << ddp.status();
    EXPECT_TRUE(at::all(frozen == 1.0).item<bool>());
    EXPECT_TRUE(at::all(buffer == 3.0).item<bool>());
  });
}

}  // namespace
}  // namespace gradsync
