#ifndef GRADSYNC_TRAIN_TENSOR_SLICE_H_
#define GRADSYNC_TRAIN_TENSOR_SLICE_H_

#include <memory>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/activity.h"
#include "models/model.h"
#include "models/sliced_loss.h"
#include "pipeline/slice_link.h"
#include "pipeline/slice_place.h"
#include "train/slice_channel.h"

namespace gradsync {

struct TensorSliceOptions {
  bool split_sequence = false;  // SliceOf::splits_sequence
  absl::Duration timeout = absl::Seconds(60);
  Activity* activity = nullptr;  // waits for other slices are told; null: nobody asks
};

// This rank's slice of a model in training. Every rank makes the whole model, so that its weights
// are drawn whole, and keeps its part of each.
//
// Not thread-safe. A failure is the job's (pipeline/slice_link.h).
class TensorSlice {
 public:
  // Collective over the slices: connects to them, and makes `model`, which is whole and not bound
  // to buckets yet, this rank's slice. All pointers must outlive the result. Errors:
  // INVALID_ARGUMENT for a model of which there are no slices; those of SliceLink.
  static absl::StatusOr<std::unique_ptr<TensorSlice>> Create(const TensorSliceOptions& options,
                                                             const SlicePlace& place,
                                                             std::shared_ptr<Model> model);

  // Of the model's output, which is this slice's part of the logits. Throws what LibTorch throws,
  // and c10::Error when status() is not OK.
  SlicedLoss Loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
    return SlicedCrossEntropy(logits, labels, label_smoothing, channel_);
  }

  // Collective over the slices, in an evaluation: the whole logits.
  absl::StatusOr<at::Tensor> WholeLogits(const at::Tensor& logits);

  // Collective over the slices, between steps: SHA-256 of the whole model's parameters, as
  // FlatParameters::Sha256() of the model in one piece has it, on every slice. Errors: INTERNAL
  // naming a parameter that slices have whole and that is not the same on all of them.
  absl::StatusOr<std::string> ParamsSha256();

  // The first error of an exchange in forward or backward.
  const absl::Status& status() const { return channel_.status(); }

  // Leaves in good order, after the last exchange.
  absl::Status Finish();

  bool is_first() const { return link_->slice() == 0; }
  const SliceLink& link() const { return *link_; }
  absl::Duration waited() const { return channel_.waited(); }

 private:
  TensorSlice(const TensorSliceOptions& options, const SlicePlace& place,
              std::shared_ptr<Model> model)
      : options_(options),
        link_(place.link),
        model_(std::move(model)),
        channel_(place.link, options.timeout, options.activity) {}

  const TensorSliceOptions options_;
  SliceLink* const link_;
  const std::shared_ptr<Model> model_;
  SliceChannel channel_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TRAIN_TENSOR_SLICE_H_
