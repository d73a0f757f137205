// Synchronised BatchNorm over ranks that are threads: what n ranks compute on their batches is what
// one computes on all of them together.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "absl/time/time.h"
#include "c10/core/GradMode.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "core/group/side_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "worker/models/create_model.h"
#include "worker/models/layers.h"
#include "worker/models/loss.h"
#include "worker/models/model.h"
#include "worker/train/channel_moments.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr double kClose = 1e-5;

std::unique_ptr<SideChannel> NewChannel(const std::shared_ptr<KeyValueStore>& store, int rank,
                                        int world_size) {
  WorkerGroup group;
  group.rank = rank;
  group.world_size = world_size;
  group.run_id = "moments";
  group.store = store;
  return std::make_unique<SideChannel>(group, "batchnorm");
}

// Runs `body(rank, exchange)` for each rank on a thread of its own.
void WithMoments(int world_size, const std::function<void(int, MomentExchange*)>& body) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  RunRanks(world_size, [&](int rank) {
    const std::unique_ptr<SideChannel> channel = NewChannel(store, rank, world_size);
    ChannelMoments moments(channel.get(), absl::Seconds(60));
    body(rank, &moments);
    EXPECT_EQ(moments.status(), absl::OkStatus());
  });
}

// What a layer or model did with a batch, and has afterwards.
struct Outcome {
  at::Tensor y;
  at::Tensor dx;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> buffers;
};

void ExpectClose(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  if (found.numel() == 0) return;
  const double scale = std::max(1.0, expected.abs().max().to(at::kDouble).item<double>());
  const double off = (found - expected).abs().max().to(at::kDouble).item<double>();
  EXPECT_LE(off, kClose * scale) << what;
}

// Values whose means are far from 0, and other ones for each channel.
at::Tensor Images(int64_t count, int64_t channels, int64_t pixels, uint64_t seed) {
  at::Generator generator = MakeGenerator(seed);
  const at::Tensor noise = at::randn({count, channels, pixels, pixels}, generator);
  return noise * at::arange(1, channels + 1).view({1, -1, 1, 1}) + 7;
}

// One BatchNorm2d whose output meets `weights`, as a loss that sums over samples.
Outcome RunLayer(const at::Tensor& images, const at::Tensor& weights, MomentExchange* exchange) {
  BatchNorm2d norm(images.size(1));
  {
    c10::NoGradGuard no_grad;
    norm.parameters()[0].copy_(at::arange(1, images.size(1) + 1));
    norm.parameters()[1].fill_(0.5);
  }
  norm.set_exchange(exchange);
  const at::Tensor x = images.clone().set_requires_grad(true);
  Outcome outcome;
  const at::Tensor y = norm.forward(x);
  (y * weights + y * y).sum().backward();
  outcome.y = y.detach();
  outcome.dx = x.grad();
  for (const at::Tensor& parameter : norm.parameters())
    outcome.gradients.push_back(parameter.grad());
  outcome.buffers = norm.buffers();
  return outcome;
}

class BatchesTest : public testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(BatchesTest, AreNormalisedAsOne) {
  at::set_num_threads(1);
  const std::vector<int64_t>& counts = GetParam();
  int64_t total = 0;
  for (int64_t count : counts) total += count;
  const at::Tensor images = Images(total, /*channels=*/5, /*pixels=*/3, /*seed=*/1);
  const at::Tensor weights = Images(total, 5, 3, /*seed=*/2);
  const Outcome whole = RunLayer(images, weights, /*exchange=*/nullptr);
  std::vector<Outcome> ranks(counts.size());
  WithMoments(static_cast<int>(counts.size()), [&](int rank, MomentExchange* exchange) {
    int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += counts[r];
    ranks[rank] = RunLayer(images.narrow(0, first, counts[rank]),
                           weights.narrow(0, first, counts[rank]), exchange);
  });
  std::vector<at::Tensor> ys, dxs;
  for (const Outcome& rank : ranks) {
    ys.push_back(rank.y);
    dxs.push_back(rank.dx);
  }
  ExpectClose(at::cat(ys), whole.y, "output");
  ExpectClose(at::cat(dxs), whole.dx, "gradient of the input");
  for (size_t g = 0; g < 2; ++g) {
    at::Tensor sum = at::zeros({5});
    for (const Outcome& rank : ranks) sum += rank.gradients[g];
    ExpectClose(sum, whole.gradients[g], g == 0 ? "gradient of weight" : "gradient of bias");
  }
  for (const Outcome& rank : ranks) {
    for (size_t b = 0; b < 3; ++b) {
      ExpectClose(rank.buffers[b], whole.buffers[b], "buffer");
      EXPECT_TRUE(at::equal(rank.buffers[b], ranks[0].buffers[b])) << "other bits on another rank";
    }
    EXPECT_EQ(rank.buffers[2].item<int64_t>(), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, BatchesTest,
                         testing::Values(std::vector<int64_t>{16, 16, 16, 16},
                                         std::vector<int64_t>{1, 6}, std::vector<int64_t>{3, 0, 5},
                                         std::vector<int64_t>{0, 2}, std::vector<int64_t>{7}));

// Two convolutions, each with BatchNorm, and a smooth nonlinearity, whose gradients do not jump.
class SmoothNet : public Model {
 public:
  explicit SmoothNet(at::Generator generator) {
    ConvOptions options;
    options.in = 3;
    options.out = 8;
    options.kernel = 3;
    for (const char* number : {"1", "2"}) {
      const std::string name = number;
      convs_.push_back(
          register_module("conv" + name, std::make_shared<Conv2d>(options, generator)));
      norms_.push_back(register_module("norm" + name, std::make_shared<BatchNorm2d>(8)));
      options.in = 8;
    }
    fc_ = register_module("fc", std::make_shared<Linear>(8, 10, generator));
    AddBlock({"all",
              {"conv1", "norm1", "conv2", "norm2", "fc"},
              [this](const at::Tensor& x) { return Compute(x); },
              /*recompute=*/false});
  }

 private:
  at::Tensor Compute(at::Tensor x) {
    for (size_t i : {0, 1}) x = at::tanh(norms_[i]->forward(convs_[i]->forward(x)));
    return fc_->forward(x.mean({2, 3}));
  }

  std::vector<std::shared_ptr<Conv2d>> convs_;
  std::vector<std::shared_ptr<BatchNorm2d>> norms_;
  std::shared_ptr<Linear> fc_;
};

std::shared_ptr<Model> NewResNet(bool activation_checkpointing = false) {
  ModelOptions options;
  options.seed = 3;
  options.activation_checkpointing = activation_checkpointing;
  return CreateModel(options).value();
}

// A step; gradients are means over workers, as data-parallel training has them.
Outcome RunModel(Model& model, const at::Tensor& images, const at::Tensor& labels,
                 MomentExchange* exchange) {
  EXPECT_GT(SetMomentExchange(model, exchange), 1);
  Outcome outcome;
  const at::Tensor logits = model.forward(images);
  CrossEntropy(logits, labels).backward();
  outcome.y = logits.detach();
  for (const at::Tensor& parameter : model.parameters()) {
    outcome.gradients.push_back(parameter.grad());
  }
  outcome.buffers = model.buffers();
  return outcome;
}

// Of four workers with 16 samples each, and of one with all 64: both with equal outputs and
// buffers, and with the gradients that are returned, each as one vector.
std::pair<at::Tensor, at::Tensor> GradientsOfFourAndOfOne(
    const std::function<std::shared_ptr<Model>()>& new_model, int64_t pixels,
    at::ScalarType type = at::kFloat) {
  at::set_num_threads(1);
  at::Generator generator = MakeGenerator(5);
  const at::Tensor images = at::randn({64, 3, pixels, pixels}, generator).to(type);
  const at::Tensor labels = at::arange(64) % 10;
  const Outcome whole = RunModel(*new_model(), images, labels, nullptr);
  std::vector<Outcome> ranks(4);
  WithMoments(4, [&](int rank, MomentExchange* exchange) {
    ranks[rank] = RunModel(*new_model(), images.narrow(0, 16 * rank, 16),
                           labels.narrow(0, 16 * rank, 16), exchange);
  });
  for (int rank = 0; rank < 4; ++rank) {
    ExpectClose(ranks[rank].y, whole.y.narrow(0, 16 * rank, 16), "logits");
    for (size_t b = 0; b < whole.buffers.size(); ++b) {
      ExpectClose(ranks[rank].buffers[b], whole.buffers[b], "buffer");
    }
  }
  std::vector<at::Tensor> four, one;
  for (size_t g = 0; g < whole.gradients.size(); ++g) {
    at::Tensor mean = at::zeros_like(whole.gradients[g]);
    for (const Outcome& rank : ranks) mean += rank.gradients[g] / 4;
    four.push_back(mean.flatten());
    one.push_back(whole.gradients[g].flatten());
  }
  return {at::cat(four), at::cat(one)};
}

TEST(SyncBatchNormTest, FourWorkersTimes16AreOneOn64) {
  const auto [four, one] = GradientsOfFourAndOfOne(
      [] { return std::make_shared<SmoothNet>(MakeGenerator(3)); }, /*pixels=*/8);
  ExpectClose(four, one, "gradients");
}

// In double precision, in which rounding does not reach the fifth digit.
TEST(SyncBatchNormTest, AResNetsGradientsAreThoseOfOneWorker) {
  const auto [four, one] = GradientsOfFourAndOfOne(
      [] {
        std::shared_ptr<Model> model = NewResNet();
        model->to(at::kDouble);
        return model;
      },
      /*pixels=*/16, at::kDouble);
  EXPECT_LE((four - one).norm().item<double>(), kClose * one.norm().item<double>());
  ExpectClose(four, one, "gradients");
}

// In single precision rounding moves some activations across ReLU's kink, where gradients jump: how far is seen by one
// worker whose images are a little brighter, which BatchNorm undoes but for rounding.
TEST(SyncBatchNormTest, AResNetsGradientsDifferNoMoreThanByRounding) {
  constexpr int64_t kPixels = 64;
  const auto [four, one] = GradientsOfFourAndOfOne([] { return NewResNet(); }, kPixels);
  at::Generator generator = MakeGenerator(5);
  const at::Tensor images = at::randn({64, 3, kPixels, kPixels}, generator) * (1 + 1e-6);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& gradient :
       RunModel(*NewResNet(), images, at::arange(64) % 10, nullptr).gradients) {
    flat.push_back(gradient.flatten());
  }
  const double by_rounding = (at::cat(flat) - one).norm().item<float>();
  EXPECT_LE((four - one).norm().item<float>(), 4 * by_rounding);
  EXPECT_LE(by_rounding, 0.01 * one.norm().item<float>());
}

// The recomputation meets the other ranks again, on each in the same order.
TEST(SyncBatchNormTest, ActivationCheckpointingChangesNoBits) {
  at::set_num_threads(1);
  constexpr int kRanks = 2;
  at::Generator generator = MakeGenerator(5);
  const at::Tensor images = at::randn({8, 3, 32, 32}, generator);
  const at::Tensor labels = at::arange(8) % 10;
  std::vector<Outcome> kept(kRanks), recomputed(kRanks);
  for (const bool recompute : {false, true}) {
    WithMoments(kRanks, [&](int rank, MomentExchange* exchange) {
      (recompute ? recomputed : kept)[rank] =
          RunModel(*NewResNet(recompute), images.narrow(0, 4 * rank, 4),
                   labels.narrow(0, 4 * rank, 4), exchange);
    });
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(at::equal(recomputed[rank].y, kept[rank].y));
    for (size_t g = 0; g < kept[rank].gradients.size(); ++g) {
      EXPECT_TRUE(at::equal(recomputed[rank].gradients[g], kept[rank].gradients[g])) << g;
    }
    for (size_t b = 0; b < kept[rank].buffers.size(); ++b) {
      EXPECT_TRUE(at::equal(recomputed[rank].buffers[b], kept[rank].buffers[b])) << b;
    }
  }
}

TEST(SyncBatchNormTest, NeedsTwoValuesPerChannelOfAllRanksTogether) {
  WithMoments(2, [](int rank, MomentExchange* exchange) {
    BatchNorm2d norm(2);
    norm.set_exchange(exchange);
    EXPECT_EQ(norm.forward(at::ones({1, 2, 1, 1}) * rank).numel(), 2);
    EXPECT_THROW(norm.forward(at::ones({rank, 2, 1, 1})), c10::Error);
  });
}

TEST(SyncBatchNormTest, AFailureOfTheGroupEndsTheWaitWithItsError) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  const std::unique_ptr<SideChannel> channel = NewChannel(store, 0, 2);
  ChannelMoments moments(channel.get(), absl::Seconds(60));
  BatchNorm2d norm(2);
  norm.set_exchange(&moments);
  RunRanks(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_THROW(norm.forward(at::ones({4, 2, 1, 1})), c10::Error);
    } else {
      EXPECT_TRUE(
          store->Fail("moments/", "rank 1 failed first: it is gone", Deadline::Never()).ok());
    }
  });
  EXPECT_EQ(moments.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(moments.status().message()), HasSubstr("rank 1 failed first"));
}

}  // namespace
}  // namespace gradsync
