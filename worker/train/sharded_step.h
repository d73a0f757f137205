#ifndef GRADSYNC_WORKER_TRAIN_SHARDED_STEP_H_
#define GRADSYNC_WORKER_TRAIN_SHARDED_STEP_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/step_order.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/models/model.h"
#include "worker/pipeline/stage_step.h"
#include "worker/train/forward.h"
#include "worker/train/model_share.h"

namespace gradsync {

// A model of which owners alone keep the parameters: forward and backward gather them block by
// block. The graph is cut between blocks, so that before each block's backward its parameters can be gathered again; cut or
// not, gradients have the same bits (worker/pipeline/stage_step.h).
//
// Not thread-safe. Throws what LibTorch throws. When a gather fails the group is aborted, and
// status() says why; what is computed after that is worth nothing.
class ShardedStep : public ModelShare {
 public:
  // A gather takes at most `timeout`.
  ShardedStep(const ComputeOptions& compute, std::shared_ptr<Model> model, absl::Duration timeout)
      : ModelShare(compute, std::move(model)), timeout_(timeout) {}

  // Trainable parameters of the model's blocks.
  std::vector<std::vector<std::string>> units() const override;

  // The logits of the last block, with the graph of that block alone.
  at::Tensor Forward(const at::Tensor& images) override;
  void Backward(const at::Tensor& objective) override;  // through all blocks
  absl::Status status() const override { return status_; }

  // Undefined inputs only help the others to their parameters.
  absl::StatusOr<at::Tensor> TestLogits(const at::Tensor& inputs) override;
  bool tests_in_step() const override { return true; }

  absl::Status CheckFiniteParameters(const std::string& where, Deadline deadline) override;
  absl::StatusOr<std::string> ParamsSha256(Deadline deadline) override;

 private:
  // Behind a block.
  struct Cut {
    int block = 0;
    at::Tensor output;
    std::unique_ptr<StageInlet> inlet;
  };

  void Need(UnitTurn turn);

  const absl::Duration timeout_;
  std::vector<Cut> cuts_;  // of the forward whose backward is to come
  absl::Status status_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_SHARDED_STEP_H_
