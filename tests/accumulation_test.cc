// What accumulation is, from its definition: a loop by hand over the loader's batches, with plain
// autograd and plain SGD, ends with the trainer's bits.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "core/base/sha256.h"
#include "core/group/side_channel.h"
#include "core/sync/local_sync.h"
#include "gtest/gtest.h"
#include "worker/data/data_loader.h"
#include "worker/data/open_dataset.h"
#include "worker/data/sampler.h"
#include "worker/models/create_model.h"
#include "worker/models/loss.h"
#include "worker/train/trainer.h"

namespace gradsync {
namespace {

// 50,000 samples are 6 batches, the last of 5,000, and so 2 steps: of 4 batches and of 2.
TrainerOptions Options() {
  TrainerOptions options;
  options.model.name = "mlp";
  options.batch_size = 9000;
  options.accumulate = 4;
  options.epochs = 2;
  options.label_smoothing = 0.1;
  options.recipe.base = 0.05;
  options.synchronised = false;
  options.seed = 11;
  options.optimizer.groups.emplace_back();
  return options;
}

struct Step {
  double loss = 0;
  int64_t correct = 0;
  int64_t samples = 0;
};

std::vector<Step> TrainByHand(const TrainerOptions& options, Model& model) {
  const std::shared_ptr<const ImageDataset> data = OpenDataset("synthetic", Split::kTrain).value();
  SamplerOptions sampler;
  sampler.dataset_size = data->size();
  sampler.seed = options.seed;
  DataLoaderOptions loader;
  loader.batch_size = options.batch_size;
  loader.augment_seed = options.seed;
  const auto batches =
      DataLoader::Create(data, RankSampler::Create(sampler).value(), loader).value();
  std::vector<Step> steps;
  for (int in_step : {4, 2, 4, 2}) {
    Step& step = steps.emplace_back();
    model.zero_grad();
    float loss_sum = 0;
    for (int i = 0; i < in_step; ++i) {
      const Batch batch = batches->Next().value();
      const at::Tensor logits = model.forward(batch.images);
      const at::Tensor loss = CrossEntropy(logits, batch.labels, options.label_smoothing);
      loss.div(in_step).backward();
      loss_sum = i == 0 ? loss.item<float>() : loss_sum + loss.item<float>();
      step.correct += CountCorrect(logits, batch.labels);
      step.samples += batch.labels.numel();
    }
    step.loss = loss_sum / static_cast<float>(in_step);
    for (const at::Tensor& parameter : model.parameters()) {
      float* values = parameter.data_ptr<float>();
      const float* gradient = parameter.grad().data_ptr<float>();
      const float lr = static_cast<float>(options.recipe.base);
      for (int64_t k = 0; k < parameter.numel(); ++k) values[k] -= lr * gradient[k];
    }
  }
  return steps;
}

// As Trainer's params_sha256.
std::string HashOf(const Model& model) {
  std::string bytes;
  for (const at::Tensor& parameter : model.parameters()) {
    bytes.append(reinterpret_cast<const char*>(parameter.data_ptr<float>()), parameter.nbytes());
  }
  return Sha256Hex(bytes);
}

TEST(AccumulationTest, HasTheBitsOfItsDefinition) {
  const TrainerOptions options = Options();
  at::set_num_threads(1);
  std::vector<StepReport> reports;
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  SideChannel side_channel(WorkerGroup(), "trainer");
  auto trainer = Trainer::Create(options, 0, 1);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
  const auto result = (*trainer)->Run([&](const StepReport& r) { reports.push_back(r); });
  ASSERT_TRUE(result.ok()) << result.status();

  ModelOptions model = options.model;
  model.seed = options.seed;
  const std::shared_ptr<Model> by_hand = CreateModel(model).value();
  const std::vector<Step> expected = TrainByHand(options, *by_hand);
  ASSERT_EQ(reports.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(reports[i].loss, expected[i].loss) << "step " << i + 1;
    EXPECT_EQ(reports[i].correct, expected[i].correct) << "step " << i + 1;
    EXPECT_EQ(reports[i].samples, expected[i].samples) << "step " << i + 1;
    EXPECT_EQ(reports[i].epoch, i < 2 ? 1 : 2);
    EXPECT_EQ(reports[i].epoch_end.has_value(), i % 2 == 1);
  }
  EXPECT_EQ(result->params_sha256, HashOf(*by_hand));
}

}  // namespace
}  // namespace gradsync
