#ifndef GRADSYNC_WORKER_TRAIN_TENSOR_SLICE_H_
#define GRADSYNC_WORKER_TRAIN_TENSOR_SLICE_H_

#include <memory>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "worker/models/loss.h"
#include "worker/models/model.h"
#include "worker/pipeline/slice_link.h"
#include "worker/train/compute_options.h"
#include "worker/train/model_share.h"
#include "worker/train/slice_channel.h"

namespace gradsync {

struct TensorSliceOptions {
  ComputeOptions compute;
  bool split_sequence = false;  // SliceOf::splits_sequence
  absl::Duration timeout = absl::Seconds(60);
  Activity* activity = nullptr;  // waits for other slices are told; null: nobody asks
};

// This rank's slice of a model in training. Every rank makes the whole model, so that its weights
// are drawn whole, and keeps its part of each.
//
// Not thread-safe. A failure is the job's (worker/pipeline/slice_link.h).
class TensorSlice : public ModelShare {
 public:
  // Collective over the slices: connects to them, and makes `model`, which is whole and not bound
  // to buckets yet, this rank's slice. All pointers must outlive the result. Errors:
  // INVALID_ARGUMENT for a model of which there are no slices; those of SliceLink.
  static absl::StatusOr<std::unique_ptr<TensorSlice>> Create(const TensorSliceOptions& options,
                                                             const SlicePlace& place,
                                                             std::shared_ptr<Model> model);

  SideChannel* replicas() const override { return replicas_; }

  // Of the model's output, which is this slice's part of the logits. Throws what LibTorch throws,
  // and c10::Error when status() is not OK.
  SlicedLoss Loss(const at::Tensor& logits, const at::Tensor& labels,
                  double label_smoothing) override {
    return SlicedCrossEntropy(logits, labels, label_smoothing, channel_);
  }
  absl::Status status() const override { return channel_.status(); }

  // The first slice has the whole logits.
  absl::StatusOr<at::Tensor> TestLogits(const at::Tensor& inputs) override;

  // Errors: also INTERNAL naming a parameter that slices have whole and that is not the same on all
  // of them.
  absl::StatusOr<std::string> ParamsSha256(Deadline deadline) override;
  absl::Status Finish() override;
  ShareTraffic traffic() const override {
    return {channel_.waited(), link_->bytes_sent(), link_->bytes_received()};
  }

 private:
  TensorSlice(const TensorSliceOptions& options, const SlicePlace& place,
              std::shared_ptr<Model> model)
      : ModelShare(options.compute, std::move(model)),
        options_(options),
        link_(place.link),
        replicas_(place.replicas),
        channel_(place.link, options.timeout, options.activity) {}

  const TensorSliceOptions options_;
  SliceLink* const link_;
  SideChannel* const replicas_;
  SliceChannel channel_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TENSOR_SLICE_H_
