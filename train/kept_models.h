#ifndef GRADSYNC_TRAIN_KEPT_MODELS_H_
#define GRADSYNC_TRAIN_KEPT_MODELS_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "models/model.h"

namespace gradsync {

// A model as it was after some of its steps, for an evaluation that must not hold up training. Each
// takes the memory of its parameters and buffers, on their device. Not thread-safe. LibTorch's
// exceptions pass.
class KeptModels {
 public:
  // Copies the parameters and buffers of `model`.
  void Keep(const Model& model, int64_t step);

  // Copies `tensors`: other values for its parameters and then its buffers, in their order.
  void Keep(const std::vector<at::Tensor>& tensors, int64_t step);

  // Calls `visit` for each that was kept, in order, with `model` as it was after `step`, until an
  // error, which is returned. Then `model` is as it was before the call.
  absl::Status ForEach(Model& model, const std::function<absl::Status(int64_t step)>& visit) const;

 private:
  std::vector<std::pair<int64_t, std::vector<at::Tensor>>> kept_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TRAIN_KEPT_MODELS_H_
