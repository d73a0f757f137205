#include "train/evaluate.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "c10/core/InferenceMode.h"
#include "data/augment.h"
#include "models/loss.h"

namespace gradsync {
namespace {

struct Samples {
  at::Tensor inputs;
  at::Tensor labels;
};

// Samples first, first + stride, ..., `count` of them.
using ReadSamples =
    std::function<absl::StatusOr<Samples>(int64_t first, int64_t stride, int64_t count)>;

ReadSamples ReaderOf(const ImageDataset& dataset) {
  const auto augmenter = std::make_shared<Augmenter>(dataset.shape(), AugmentationOf(dataset));
  const auto scratch = std::make_shared<std::vector<uint8_t>>(dataset.shape().bytes());
  return [&dataset, augmenter, scratch](int64_t first, int64_t stride,
                                        int64_t count) -> absl::StatusOr<Samples> {
    const ImageShape shape = dataset.shape();
    Samples samples;
    samples.inputs = at::empty({count, shape.channels, shape.height, shape.width}, at::kFloat);
    samples.labels = at::empty({count}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      GS_ASSIGN_OR_RETURN(const ImageExample example,
                          dataset.Get(first + i * stride, absl::MakeSpan(*scratch)));
      augmenter->Evaluate(example.pixels, samples.inputs.data_ptr<float>() + i * shape.bytes());
      samples.labels.data_ptr<int64_t>()[i] = example.label;
    }
    return samples;
  };
}

ReadSamples ReaderOf(const TokenDataset& dataset) {
  return [&dataset](int64_t first, int64_t stride, int64_t count) -> absl::StatusOr<Samples> {
    const int64_t length = dataset.context();
    Samples samples;
    samples.inputs = at::empty({count, length}, at::kLong);
    samples.labels = at::empty({count, length}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      const auto row = [&](const at::Tensor& t) {
        return absl::Span<int64_t>(t.data_ptr<int64_t>() + i * length, static_cast<size_t>(length));
      };
      dataset.Get(first + i * stride, row(samples.inputs), row(samples.labels));
    }
    return samples;
  };
}

absl::StatusOr<Evaluation> Evaluate(Model& model, int64_t size, const ReadSamples& read,
                                    int64_t batch_size, const EvaluationShare& own,
                                    SideChannel& side_channel, Deadline deadline) {
  const int64_t share = (size - own.rank + own.ranks - 1) / own.ranks;
  const int64_t largest_share = (size + own.ranks - 1) / own.ranks;
  int64_t counted = 0;
  double loss_sum = 0;
  double correct = 0;
  double labels = 0;
  const std::vector<at::Tensor> parameters = model.parameters();
  const c10::Device device =
      parameters.empty() ? c10::Device(c10::DeviceType::CPU) : parameters[0].device();
  c10::InferenceMode inference;
  model.eval();
  absl::optional<Activity::Work> work(absl::in_place, own.activity);
  for (int64_t done = 0; done < (own.in_step ? largest_share : share); done += batch_size) {
    if (own.check) GS_RETURN_IF_ERROR(own.check());
    const int64_t count = std::min(batch_size, share - done);
    if (count <= 0) {
      GS_RETURN_IF_ERROR(own.logits(at::Tensor()).status());
      continue;
    }
    GS_ASSIGN_OR_RETURN(const Samples samples, read(own.rank + done * own.ranks, own.ranks, count));
    try {
      const at::Tensor targets = samples.labels.to(device);
      GS_ASSIGN_OR_RETURN(const at::Tensor logits, own.logits(samples.inputs.to(device)));
      if (!logits.defined()) continue;
      counted += count;
      loss_sum += CrossEntropy(logits, targets).item<float>() * static_cast<double>(count);
      correct += static_cast<double>(CountCorrect(logits, targets));
      labels += static_cast<double>(targets.numel());
      CountActivity(own.activity);
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
    }
  }
  work.reset();
  model.train();
  GS_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      side_channel.SumDoubles({loss_sum, correct, static_cast<double>(counted), labels}, deadline));
  Evaluation evaluation;
  evaluation.samples = static_cast<int64_t>(sums[2]);
  evaluation.loss = sums[0] / sums[2];
  evaluation.accuracy = sums[1] / sums[3];
  return evaluation;
}

}  // namespace

absl::StatusOr<Evaluation> EvaluateModel(Model& model, const ImageDataset& dataset,
                                         int64_t batch_size, const EvaluationShare& own,
                                         SideChannel& side_channel, Deadline deadline) {
  return Evaluate(model, dataset.size(), ReaderOf(dataset), batch_size, own, side_channel,
                  deadline);
}

absl::StatusOr<Evaluation> EvaluateModel(Model& model, const TokenDataset& dataset,
                                         int64_t batch_size, const EvaluationShare& own,
                                         SideChannel& side_channel, Deadline deadline) {
  return Evaluate(model, dataset.size(), ReaderOf(dataset), batch_size, own, side_channel,
                  deadline);
}

}  // namespace gradsync
