#include "worker/train/check_batch_of_one.h"

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "core/base/errors.h"
#include "worker/data/dataset.h"
#include "worker/models/layers.h"
#include "worker/train/accumulation.h"

namespace gradsync {
namespace {

bool HasBatchOfOne(const JobInputs& inputs) {
  const Accumulation& batches = inputs.accumulation;
  if (batches.batch_size == 1) return true;
  return batches.share % batches.batch_size == 1 && inputs.steps >= inputs.steps_per_epoch;
}

// BatchNorm then has the values of all ranks.
bool NormalisesTogether(const TrainerOptions& options, const JobInputs& inputs) {
  return options.sync_batchnorm && options.synchronised && inputs.sampler->options().world_size > 1;
}

// Whether forward in training does so many images.
bool Takes(int64_t images, const ImageShape& shape, Model& model) {
  const c10::NoGradGuard no_grad;
  // The running statistics.
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (const at::Tensor& buffer : model.buffers()) before.emplace_back(buffer, buffer.clone());
  bool takes = true;
  try {
    model.forward(at::zeros({images, shape.channels, shape.height, shape.width}));
  } catch (const std::exception&) {
    takes = false;
  }
  for (const auto& [buffer, values] : before) buffer.copy_(values);
  return takes;
}

}  // namespace

absl::Status CheckBatchOfOne(const TrainerOptions& options, const JobInputs& inputs, Model& model) {
  if (inputs.train == nullptr || !HasBatchOfOne(inputs) || NormalisesTogether(options, inputs) ||
      SetMomentExchange(model, nullptr) == 0) {
    return absl::OkStatus();
  }
  const ImageShape shape = inputs.train->shape();
  // What does not do two either has another reason, which training will say.
  if (Takes(1, shape, model) || !Takes(2, shape, model)) return absl::OkStatus();
  const std::string batches =
      options.data_parallel > 1
          ? absl::StrCat("parts for --data_parallel=", options.data_parallel, " replicas")
          : "batches";
  return FlagError(
      "batch_size",
      absl::StrCat("one without ", batches, " of a single image, which BatchNorm cannot normalise",
                   " (a rank's share of ", options.data, " is ", inputs.accumulation.share,
                   " images)"),
      absl::StrCat(options.batch_size));
}

}  // namespace gradsync
