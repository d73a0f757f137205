// Replicas beside a loop by hand that accumulates over the same parts: the same bits.

#include "worker/train/data_parallel_step.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ATen/ops/equal.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/kinds.h"
#include "core/sync/local_sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/layers.h"
#include "worker/models/loss.h"
#include "worker/train/compute_options.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 7;
constexpr double kSmoothing = 0.1;

uint64_t SeedOf(int64_t step, int64_t part) { return StepSeed(kSeed, /*rank=*/0, step, part); }

ModelOptions Small(const std::string& name) {
  ModelOptions model;
  model.name = name;
  model.image_size = 8;
  model.gpt_width = 12;
  model.gpt_layers = 2;
  model.gpt_heads = 2;
  model.gpt_context = 6;
  model.classes = name == "gpt" ? 20 : 10;
  return model;
}

Batch NewBatch(const ModelOptions& model, int64_t samples, uint64_t seed) {
  at::Generator generator = MakeGenerator(seed);
  Batch batch;
  if (model.name == "gpt") {
    batch.images = at::randint(model.classes, {samples, model.gpt_context}, generator, at::kLong);
    batch.labels = at::randint(model.classes, {samples, model.gpt_context}, generator, at::kLong);
  } else {
    batch.images = at::randn({samples, 3, model.image_size, model.image_size}, generator);
    batch.labels = at::randint(model.classes, {samples}, generator, at::kLong);
  }
  return batch;
}

// A model in training, by itself.
class Trained {
 public:
  explicit Trained(const ModelOptions& options)
      : model_(CreateModel(options).value()), sync_(CreateLocalSync(UpdateSite::kWorker)) {
    SetComputeThreads(1);
    model_->train();
    DdpEngineOptions ddp;
    ddp.optimizer.kind = OptimizerKind::kSgd;
    ddp.optimizer.groups.emplace_back();
    ddp.plan.bucket_bytes = 4 << 20;
    ddp_ = DdpEngine::Create(model_, sync_.get(), nullptr, ddp).value();
  }

  const std::shared_ptr<Model>& model() const { return model_; }
  DdpEngine& ddp() { return *ddp_; }

  void Finish() {
    const absl::Status status = ddp_->FinishStep(Deadline::In(absl::Seconds(60)));
    ASSERT_TRUE(status.ok()) << status;
  }

 private:
  const std::shared_ptr<Model> model_;
  const std::unique_ptr<GradientSync> sync_;
  std::unique_ptr<DdpEngine> ddp_;
};

// Steps of batches; the sizes of these.
using Sizes = std::vector<std::vector<int64_t>>;

int64_t PartsOf(const std::vector<int64_t>& batches, int64_t part) {
  int64_t parts = 0;
  for (int64_t size : batches) parts += (size + part - 1) / part;
  return parts;
}

std::vector<float> Accumulate(const ModelOptions& options, const Sizes& sizes, int64_t part,
                              Trained* trained) {
  std::vector<float> losses;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const int64_t step = static_cast<int64_t>(s) + 1;
    const int64_t parts = PartsOf(sizes[s], part);
    FigureSum sum;
    int64_t i = 0;
    for (size_t b = 0; b < sizes[s].size(); ++b) {
      const Batch batch = NewBatch(options, sizes[s][b], 100 * step + b);
      for (int64_t begin = 0; begin < sizes[s][b]; begin += part, ++i) {
        const int64_t size = std::min(part, sizes[s][b] - begin);
        const auto compute = [&] {
          trained->model()->BeginStep(SeedOf(step, i));
          const at::Tensor logits = trained->model()->forward(batch.images.narrow(0, begin, size));
          const at::Tensor labels = batch.labels.narrow(0, begin, size);
          const at::Tensor loss = CrossEntropy(logits, labels, kSmoothing);
          sum.Add({loss.detach(), CorrectPredictions(logits, labels).to(at::kFloat)});
          (parts > 1 ? loss / static_cast<double>(parts) : loss).backward();
        };
        if (i + 1 == parts) {
          EXPECT_TRUE(trained->ddp().BeginStep({step, 0.05}).ok());
          compute();
        } else {
          const auto no_sync = trained->ddp().NoSync();
          compute();
        }
      }
    }
    trained->Finish();
    losses.push_back(sum.OfStep().loss.item<float>());
  }
  return losses;
}

DataParallelOptions Replicas(const ModelOptions& model, int replicas, int64_t part) {
  DataParallelOptions options;
  options.replicas = replicas;
  options.threads = replicas;
  options.part = part;
  options.model = model;
  return options;
}

DataParallelStep::Work WorkOf(const Batch& batch, int64_t step, int64_t parts) {
  DataParallelStep::Work work;
  work.step = {step, 0.05};
  work.batch = batch;
  work.parts = parts;
  work.label_smoothing = kSmoothing;
  work.seed = [step](int64_t part) { return SeedOf(step, part); };
  return work;
}

std::vector<float> TrainReplicas(const ModelOptions& options, const Sizes& sizes, int replicas,
                                 int64_t part, Trained* trained) {
  auto own = DataParallelStep::Create(Replicas(options, replicas, part), trained->model());
  EXPECT_TRUE(own.ok()) << own.status();
  std::vector<float> losses;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const int64_t step = static_cast<int64_t>(s) + 1;
    FigureSum sum;
    ReplicaTimes times;
    int64_t first = 0;
    for (size_t b = 0; b < sizes[s].size(); ++b) {
      const Batch batch = NewBatch(options, sizes[s][b], 100 * step + b);
      DataParallelStep::Work work = WorkOf(batch, step, PartsOf(sizes[s], part));
      work.first_part = first;
      ReplicaPoints points;
      points.begin = points.have_data = MonotonicTime::Now();
      const absl::Status status = (*own)->Run(trained->ddp(), work, &sum, &times, &points);
      EXPECT_TRUE(status.ok()) << status;
      first += (*own)->PartsOf(batch);
    }
    trained->Finish();
    losses.push_back(sum.OfStep().loss.item<float>());
  }
  return losses;
}

// One step of `replicas` over a batch, up to its FinishStep().
struct OneStep {
  OneStep(const ModelOptions& options, int replicas, int64_t part)
      : model(options),
        trained(model),
        step(DataParallelStep::Create(Replicas(model, replicas, part), trained.model()).value()) {}

  absl::Status Run(const Batch& batch, int64_t parts) {
    points.begin = points.have_data = MonotonicTime::Now();
    return step->Run(trained.ddp(), WorkOf(batch, 1, parts), &sum, &times, &points);
  }

  const ModelOptions model;
  Trained trained;
  const std::unique_ptr<DataParallelStep> step;
  FigureSum sum;
  ReplicaTimes times;
  ReplicaPoints points;
};

struct Case {
  std::string model;
  int replicas;
  int64_t part;
  Sizes sizes;
  bool checkpointing = false;
};

class DataParallelStepTest : public ::testing::TestWithParam<Case> {};

TEST_P(DataParallelStepTest, ParametersStatisticsAndLossesHaveTheBitsOfAccumulation) {
  const Case& c = GetParam();
  ModelOptions model = Small(c.model);
  model.activation_checkpointing = c.checkpointing;
  Trained serial(model), parallel(model);
  const std::vector<float> expected = Accumulate(model, c.sizes, c.part, &serial);
  EXPECT_EQ(TrainReplicas(model, c.sizes, c.replicas, c.part, &parallel), expected);
  EXPECT_EQ(parallel.ddp().ParamsSha256(), serial.ddp().ParamsSha256());
  const auto buffers = parallel.model()->named_buffers();
  for (const auto& buffer : serial.model()->named_buffers()) {
    EXPECT_TRUE(at::equal(buffers[buffer.key()], buffer.value())) << buffer.key();
  }
}

INSTANTIATE_TEST_SUITE_P(
    , DataParallelStepTest,
    ::testing::Values(
        // The last step of an epoch: fewer parts, the last one smaller; then one part alone.
        Case{"mlp", 3, 4, {{12}, {12}, {7}, {3}}},
        // Running statistics, and buckets that leave while others are added up.
        Case{"resnet18", 2, 2, {{4}, {4}}}, Case{"resnet18", 4, 2, {{8}, {6}}},
        Case{"resnet18", 2, 2, {{4}, {4}}, /*checkpointing=*/true},
        // Dropout, and tied weights.
        Case{"gpt", 2, 2, {{4}, {4}}},
        // Several batches in a step, of which the last has one part.
        Case{"mlp", 2, 3, {{6, 6}, {6, 2}}}, Case{"mlp", 1, 5, {{5}, {5}}}),
    [](const auto& info) {
      return info.param.model + "_" + std::to_string(info.param.replicas) + "_replicas_" +
             std::to_string(info.index);
    });

// Without it nobody could say what a replica costs.
TEST(DataParallelStepLoadTest, SaysWhatDevice0SendsAndReceives) {
  OneStep one(Small("mlp"), /*replicas=*/3, /*part=*/2);
  ASSERT_TRUE(one.Run(NewBatch(one.model, 6, 1), 3).ok());
  one.trained.Finish();
  const Plan& plan = one.trained.ddp().plan();
  int64_t parameters = 0;
  for (const TensorSpec& tensor : plan.tensors()) parameters += 4 * tensor.numel();
  const int64_t sample = 4 * 3 * 8 * 8 + 8;
  const ReplicaTimes& times = one.times;
  EXPECT_EQ(times.tx_bytes, 2 * parameters + 4 * sample);
  EXPECT_EQ(times.rx_bytes, 2 * parameters + 2 * 8);
  EXPECT_GT(times.busy_first, absl::ZeroDuration());
  EXPECT_GT(times.busy_others, absl::ZeroDuration());
  EXPECT_GT(times.FirstShare(), 0);
  EXPECT_LT(times.FirstShare(), 1);
  const ReplicaPoints& points = one.points;
  const std::vector<MonotonicTime> order = {
      points.begin,        points.have_data, points.replicated, points.scattered,
      points.forward_done, points.applied,   points.gathered,   points.reduced};
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(times.replicate + times.scatter + times.apply + times.gather + times.reduce,
            points.reduced - points.have_data);
}

TEST(DataParallelStepFailureTest, NamesTheReplicaWhoseLibTorchThrows) {
  OneStep one(Small("resnet18"), /*replicas=*/3, /*part=*/2);
  const Batch batch = NewBatch(one.model, 6, 1);
  batch.labels.narrow(0, 2, 2).fill_(one.model.classes);
  const absl::Status status = one.Run(batch, 3);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("replica 1: LibTorch"));
}

TEST(DataParallelStepFailureTest, MorePartsThanReplicasAreRefused) {
  OneStep one(Small("mlp"), /*replicas=*/2, /*part=*/2);
  const absl::Status status = one.Run(NewBatch(one.model, 5, 1), 3);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 1 to 2 parts"));
}

}  // namespace
}  // namespace gradsync
