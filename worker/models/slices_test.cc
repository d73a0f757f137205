// Slices of a small GPT as threads of one process, against the model in one piece: the loss, the
// score, all gradients, and how often slices meet.

#include "worker/models/slices.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/randint.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"
#include "worker/models/loss.h"
#include "worker/models/model.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kStepSeed = 5;

// Where the threads of all slices put down their tensors.
class Table {
 public:
  explicit Table(int slices) : tensors_(slices) {}

  // All that were put down, when all were.
  std::vector<at::Tensor> Meet(int slice, const at::Tensor& own) {
    MutexLock lock(&mutex_);
    const int round = round_;
    tensors_[slice] = own.detach().clone();
    if (++here_ == static_cast<int>(tensors_.size())) {
      met_ = std::exchange(tensors_, std::vector<at::Tensor>(tensors_.size()));
      here_ = 0;
      ++round_;
      changed_.SignalAll();
    }
    while (round_ == round) changed_.Wait(&mutex_);
    return met_;
  }

  int rounds() const { return round_; }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<at::Tensor> tensors_, met_;
  int here_ = 0;
  int round_ = 0;
};

class TableExchange : public SliceExchange {
 public:
  TableExchange(Table* table, int slice, int slices)
      : table_(table), slice_(slice), slices_(slices) {}

  int slice() const override { return slice_; }
  int slices() const override { return slices_; }

  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own) override {
    return Add(table_->Meet(slice_, own));
  }

  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own) override {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& tensor : table_->Meet(slice_, own)) parts.push_back(tensor[slice_]);
    return Add(parts);
  }

  absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own) override {
    return table_->Meet(slice_, own);
  }

 private:
  static at::Tensor Add(const std::vector<at::Tensor>& tensors) {
    at::Tensor sum = tensors[0].clone();
    for (size_t i = 1; i < tensors.size(); ++i) sum.add_(tensors[i]);
    return sum;
  }

  Table* const table_;
  const int slice_;
  const int slices_;
};

struct Case {
  std::string name;
  int slices = 2;
  bool splits_sequence = false;
  double dropout = 0;
  bool checkpointing = false;
  double smoothing = 0;
};

ModelOptions SmallGpt(const Case& c) {
  ModelOptions options;
  options.name = "gpt";
  options.gpt_width = 12;
  options.gpt_layers = 2;
  options.gpt_heads = 6;
  options.gpt_context = 6;
  options.classes = 30;
  options.seed = 7;
  options.dropout = c.dropout;
  options.activation_checkpointing = c.checkpointing;
  return options;
}

struct Outcome {
  float loss = 0;
  int64_t correct = 0;
  std::vector<at::Tensor> gradients;  // of the whole model's parameters, flat, in order
};

class SlicesTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    tokens_ = at::randint(30, {3, 6}, at::kLong);
    labels_ = at::randint(30, {3, 6}, at::kLong);
  }

  Outcome Whole() const {
    const std::shared_ptr<Model> model = *CreateModel(SmallGpt(GetParam()));
    model->BeginStep(kStepSeed);
    const at::Tensor logits = model->forward(tokens_);
    const at::Tensor loss = CrossEntropy(logits, labels_, GetParam().smoothing);
    loss.backward();
    Outcome outcome = {loss.item<float>(), CountCorrect(logits, labels_), {}};
    for (const at::Tensor& p : model->parameters()) outcome.gradients.push_back(p.grad().flatten());
    return outcome;
  }

  // Of each slice; `rounds` is how often they met.
  std::vector<Outcome> Sliced(int* rounds) const {
    const Case& c = GetParam();
    Table table(c.slices);
    std::vector<Outcome> outcomes(c.slices);
    std::vector<std::thread> threads;
    for (int s = 0; s < c.slices; ++s) {
      threads.emplace_back([&, s] { outcomes[s] = Slice(&table, s); });
    }
    for (std::thread& thread : threads) thread.join();
    *rounds = table.rounds() - static_cast<int>(outcomes[0].gradients.size());
    return outcomes;
  }

  Outcome Slice(Table* table, int slice) const {
    const Case& c = GetParam();
    at::set_num_threads(1);
    TableExchange exchange(table, slice, c.slices);
    const std::shared_ptr<Model> model = *CreateModel(SmallGpt(c));
    EXPECT_TRUE(SliceModel(*model, {&exchange, c.splits_sequence}).ok());
    model->BeginStep(kStepSeed);
    const SlicedLoss result =
        SlicedCrossEntropy(model->forward(tokens_), labels_, c.smoothing, exchange);
    result.loss.backward();
    Outcome outcome = {result.loss.item<float>(), result.correct.item<int64_t>(), {}};
    const auto sliced = dynamic_cast<SliceableModel&>(*model).SlicedParameters();
    for (const auto& parameter : model->named_parameters()) {
      const auto found = sliced.find(parameter.key());
      const auto parts = *exchange.Gather(parameter.value().grad());
      if (found == sliced.end()) {
        for (const at::Tensor& part : parts) EXPECT_TRUE(at::equal(part, parts[0]));
      }
      outcome.gradients.push_back(found == sliced.end() ? parts[slice].flatten()
                                                        : JoinParts(parts, found->second));
    }
    return outcome;
  }

  at::Tensor tokens_, labels_;
};

TEST_P(SlicesTest, ComputeWhatTheWholeModelComputes) {
  const Outcome whole = Whole();
  int rounds = 0;
  for (const Outcome& slice : Sliced(&rounds)) {
    EXPECT_NEAR(slice.loss, whole.loss, 2e-6 * whole.loss);
    EXPECT_EQ(slice.correct, whole.correct);
    ASSERT_EQ(slice.gradients.size(), whole.gradients.size());
    for (size_t i = 0; i < whole.gradients.size(); ++i) {
      EXPECT_TRUE(at::allclose(slice.gradients[i], whole.gradients[i], 1e-4, 1e-7))
          << "parameter " << i << "\n"
          << slice.gradients[i] << whole.gradients[i];
    }
  }
}

// Two sums forward and two backward for each of two layers; the embedding's, the head's, and two for
// the loss. Recomputing a layer repeats its two forward ones.
TEST_P(SlicesTest, MeetTwiceForEachLayerAndDirection) {
  if (GetParam().splits_sequence) GTEST_SKIP() << "norms and biases meet too";
  int rounds = 0;
  Sliced(&rounds);
  EXPECT_EQ(rounds, 4 * 2 + 4 + (GetParam().checkpointing ? 2 * 2 : 0));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SlicesTest,
    ::testing::Values(Case{"Two"}, Case{"Three", 3}, Case{"One", 1}, Case{"Dropout", 2, false, 0.3},
                      Case{"Checkpointing", 3, false, 0.3, true},
                      Case{"Smoothing", 2, false, 0, false, 0.1}, Case{"Sequence", 2, true},
                      Case{"SequenceOfThreeWithDropoutAndCheckpointing", 3, true, 0.3, true}),
    [](const auto& info) { return info.param.name; });

TEST(SliceModelTest, RefusesAModelWithoutSlices) {
  Table table(2);
  TableExchange exchange(&table, 0, 2);
  ModelOptions options;
  options.name = "mlp";
  const absl::Status refused = SliceModel(**CreateModel(options), {&exchange});
  EXPECT_THAT(std::string(refused.message()), HasSubstr("expected a model that has slices"));
}

}  // namespace
}  // namespace gradsync
