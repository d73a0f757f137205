#include "worker/train/evaluate.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "c10/core/InferenceMode.h"
#include "core/base/status_macros.h"
#include "worker/data/augment.h"
#include "worker/data/data_loader.h"
#include "worker/data/sampler.h"
#include "worker/models/loss.h"

namespace gradsync {
namespace {

// A rank's samples: first, first + stride, ..., `size` of them.
struct Stride {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t size = 0;

  int64_t operator()(int64_t index) const { return first + index * stride; }
};

class ShareOfImages : public ImageDataset {
 public:
  ShareOfImages(std::shared_ptr<const ImageDataset> all, const Stride& own)
      : all_(std::move(all)), own_(own) {}

  int64_t size() const override { return own_.size; }
  int classes() const override { return all_->classes(); }
  ImageShape shape() const override { return all_->shape(); }
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override {
    return all_->Get(own_(index), scratch);
  }
  Normalisation normalisation() const override { return all_->normalisation(); }
  std::string name(int64_t index) const override { return all_->name(own_(index)); }

 private:
  const std::shared_ptr<const ImageDataset> all_;
  const Stride own_;
};

class ShareOfTokens : public TokenDataset {
 public:
  ShareOfTokens(std::shared_ptr<const TokenDataset> all, const Stride& own)
      : all_(std::move(all)), own_(own) {}

  int64_t size() const override { return own_.size; }
  int64_t context() const override { return all_->context(); }
  int64_t vocabulary() const override { return all_->vocabulary(); }
  void Get(int64_t index, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const override {
    all_->Get(own_(index), inputs, targets);
  }

 private:
  const std::shared_ptr<const TokenDataset> all_;
  const Stride own_;
};

AugmentOptions NormalisationOf(const ImageDataset& images) { return AugmentationOf(images); }

AugmentOptions NormalisationOf(const TokenDataset&) { return {}; }

// What batches of a share come from: null where it is empty.
template <typename Share, typename Dataset>
absl::StatusOr<std::unique_ptr<DataLoader>> LoaderOf(const std::shared_ptr<const Dataset>& all,
                                                     const Stride& stride,
                                                     const EvaluationShare& own) {
  if (stride.size == 0) return std::unique_ptr<DataLoader>();
  SamplerOptions in_order;
  in_order.dataset_size = stride.size;
  in_order.shuffle = false;
  GS_ASSIGN_OR_RETURN(const RankSampler sampler, RankSampler::Create(in_order));
  DataLoaderOptions loader;
  loader.batch_size = std::min(own.batch_size, stride.size);
  loader.threads = own.threads.first;
  loader.most_threads = own.threads.most;
  loader.augment = false;
  loader.augmentation = NormalisationOf(*all);
  loader.depth = PrefetchDepth(BatchBytes(loader, *all), own.prefetch_bytes);
  loader.end_epoch = 1;
  loader.while_waiting = own.while_waiting;
  return DataLoader::Create(std::make_shared<const Share>(all, stride), sampler, loader);
}

// Collective: this rank's failure, or that of the first rank that has one.
absl::Status FirstFailure(const absl::Status& own, SideChannel& side_channel, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      side_channel.AllGather(own.ok() ? "" : own.message(), deadline));
  GS_RETURN_IF_ERROR(own);
  const auto first =
      std::find_if(all.begin(), all.end(), [](const std::string& each) { return !each.empty(); });
  if (first == all.end()) return absl::InternalError("evaluation: expected a failure, found none");
  return absl::AbortedError(
      absl::StrCat(side_channel.Name(static_cast<int>(first - all.begin())), ": ", *first));
}

template <typename Share, typename Dataset>
absl::StatusOr<Evaluation> Evaluate(Model& model, const std::shared_ptr<const Dataset>& dataset,
                                    const EvaluationShare& own, SideChannel& side_channel,
                                    Deadline deadline) {
  const int64_t size = dataset->size();
  const Stride stride = {own.rank, own.ranks, (size - own.rank + own.ranks - 1) / own.ranks};
  const int64_t largest_share = (size + own.ranks - 1) / own.ranks;
  int64_t counted = 0;
  double loss_sum = 0;
  double correct = 0;
  double labels = 0;
  absl::Status failure;  // this rank's own
  const std::vector<at::Tensor> parameters = model.parameters();
  const c10::Device device =
      parameters.empty() ? c10::Device(c10::DeviceType::CPU) : parameters[0].device();
  c10::InferenceMode inference;
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<DataLoader> loader,
                      LoaderOf<Share>(dataset, stride, own));
  model.eval();
  absl::optional<Activity::Work> work(absl::in_place, own.activity);
  for (int64_t done = 0; done < (own.in_step ? largest_share : stride.size);
       done += own.batch_size) {
    if (own.check) GS_RETURN_IF_ERROR(own.check());
    if (done >= stride.size || !failure.ok()) {
      GS_RETURN_IF_ERROR(own.logits(at::Tensor()).status());
      continue;
    }
    const absl::StatusOr<Batch> read = loader->Next();
    if (!read.ok() && own.failed_on_all != nullptr) {
      failure = read.status();
      if (!own.in_step) break;
      GS_RETURN_IF_ERROR(own.logits(at::Tensor()).status());
      continue;
    }
    GS_RETURN_IF_ERROR(read.status());
    const Batch& batch = *read;
    try {
      const at::Tensor targets = batch.labels.to(device);
      GS_ASSIGN_OR_RETURN(const at::Tensor logits, own.logits(batch.images.to(device)));
      if (!logits.defined()) continue;
      const int64_t count = targets.size(0);
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
  const double failed = failure.ok() ? 0 : 1;
  GS_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      side_channel.SumDoubles({loss_sum, correct, static_cast<double>(counted), labels, failed},
                              deadline));
  if (sums[4] > 0) {
    const absl::Status agreed = FirstFailure(failure, side_channel, deadline);
    *own.failed_on_all = true;
    return agreed;
  }
  Evaluation evaluation;
  evaluation.samples = static_cast<int64_t>(sums[2]);
  evaluation.loss = sums[0] / sums[2];
  evaluation.accuracy = sums[1] / sums[3];
  return evaluation;
}

}  // namespace

absl::StatusOr<Evaluation> EvaluateModel(Model& model,
                                         const std::shared_ptr<const ImageDataset>& dataset,
                                         const EvaluationShare& own, SideChannel& side_channel,
                                         Deadline deadline) {
  return Evaluate<ShareOfImages>(model, dataset, own, side_channel, deadline);
}

absl::StatusOr<Evaluation> EvaluateModel(Model& model,
                                         const std::shared_ptr<const TokenDataset>& dataset,
                                         const EvaluationShare& own, SideChannel& side_channel,
                                         Deadline deadline) {
  return Evaluate<ShareOfTokens>(model, dataset, own, side_channel, deadline);
}

}  // namespace gradsync
