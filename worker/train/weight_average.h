// An exponential moving average of a model's weights, to evaluate and keep instead of them (Polyak
// and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992).

#ifndef GRADSYNC_WORKER_TRAIN_WEIGHT_AVERAGE_H_
#define GRADSYNC_WORKER_TRAIN_WEIGHT_AVERAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "worker/models/model.h"

namespace gradsync {

// average = d * average + (1 - d) * weights after each step. The first steps count more, as in
// TensorFlow's and timm's averages: d is the smaller of `decay` and (1 + t) / (10 + t), where t
// counts the steps before. Parameters and buffers of floating point are averaged, other buffers are
// those of the last step.
//
// Every rank averages by itself, without a word to others: equal parameters in, equal averages out.
// Buffers (BatchNorm's statistics) are each rank's own, as the model's are. Takes the memory of the
// model once more, on its device, and waits for nothing.
//
// Not thread-safe. Errors, each method: INTERNAL when LibTorch throws.
class WeightAverage {
 public:
  // `decay` in [0, 1).
  explicit WeightAverage(double decay) : decay_(decay) {}

  // Begins with what `model`, in its device's memory, has now.
  absl::Status Begin(const Model& model);

  // After a step that was not skipped.
  absl::Status Update(const Model& model);

  // Puts the average in the model's place, and what the model had in the average's: called twice,
  // all is as before. Between steps only.
  absl::Status Swap(Model& model);

  // Parameters and buffers in the order of the model's. The average's own memory, which the next
  // Update() changes.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // For checkpoints: `updates` and tensors by the model's names make another one go on with the
  // same bits.
  int64_t updates() const { return updates_; }
  std::map<std::string, at::Tensor> Export() const;  // copies

  // After Begin(). Errors: INVALID_ARGUMENT naming the first tensor that is missing, too much, or
  // of another shape.
  absl::Status Import(const std::map<std::string, at::Tensor>& tensors, int64_t updates);

 private:
  const double decay_;
  int64_t updates_ = 0;
  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_WEIGHT_AVERAGE_H_
