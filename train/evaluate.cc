#include "train/evaluate.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "c10/core/InferenceMode.h"
#include "data/augment.h"
#include "models/loss.h"

namespace gradsync {
namespace {

// Fills `images` and `labels` with samples first, first + stride, ...
absl::Status FillBatch(const ImageDataset& dataset, const Augmenter& augmenter, int64_t first,
                       int64_t stride, std::vector<uint8_t>* scratch, const at::Tensor& images,
                       const at::Tensor& labels) {
  const int64_t count = labels.numel();
  for (int64_t i = 0; i < count; ++i) {
    GS_ASSIGN_OR_RETURN(const ImageExample example,
                        dataset.Get(first + i * stride, absl::MakeSpan(*scratch)));
    augmenter.Evaluate(example.pixels, images.data_ptr<float>() + i * dataset.shape().bytes());
    labels.data_ptr<int64_t>()[i] = example.label;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Evaluation> EvaluateModel(const ComputeOptions& compute, Model& model,
                                         const ImageDataset& dataset, int64_t batch_size,
                                         SideChannel& side_channel, Deadline deadline) {
  const int rank = side_channel.rank();
  const int world_size = side_channel.world_size();
  const ImageShape shape = dataset.shape();
  const Augmenter augmenter(shape, AugmentationOf(dataset));
  const int64_t share = (dataset.size() - rank + world_size - 1) / world_size;
  std::vector<uint8_t> scratch(shape.bytes());
  double loss_sum = 0;
  double correct = 0;
  const std::vector<at::Tensor> parameters = model.parameters();
  const c10::Device device =
      parameters.empty() ? c10::Device(c10::DeviceType::CPU) : parameters[0].device();
  c10::InferenceMode inference;
  model.eval();
  for (int64_t done = 0; done < share; done += batch_size) {
    const int64_t count = std::min(batch_size, share - done);
    const at::Tensor images =
        at::empty({count, shape.channels, shape.height, shape.width}, at::kFloat);
    const at::Tensor labels = at::empty({count}, at::kLong);
    GS_RETURN_IF_ERROR(FillBatch(dataset, augmenter, rank + done * world_size, world_size, &scratch,
                                 images, labels));
    try {
      const at::Tensor targets = labels.to(device);
      const at::Tensor logits = Forward(compute, model, images.to(device));
      loss_sum += CrossEntropy(logits, targets).item<float>() * static_cast<double>(count);
      correct += static_cast<double>(CountCorrect(logits, targets));
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
    }
  }
  model.train();
  GS_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      side_channel.SumDoubles({loss_sum, correct, static_cast<double>(share)}, deadline));
  Evaluation evaluation;
  evaluation.samples = static_cast<int64_t>(sums[2]);
  evaluation.loss = sums[0] / sums[2];
  evaluation.accuracy = sums[1] / sums[2];
  return evaluation;
}

}  // namespace gradsync
