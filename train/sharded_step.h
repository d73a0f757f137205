#ifndef GRADSYNC_TRAIN_SHARDED_STEP_H_
#define GRADSYNC_TRAIN_SHARDED_STEP_H_

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ddp/distributed_data_parallel.h"
#include "models/model.h"
#include "pipeline/stage_inlet.h"
#include "plan/gather_order.h"
#include "train/forward.h"

namespace gradsync {

// Trainable parameters of the model's blocks, as DdpOptions::units.
std::vector<std::vector<std::string>> UnitsOf(const Model& model);

// Forward and backward of a model whose parameters are gathered block by block. The graph is cut
// between blocks, so that before each block's backward its parameters can be gathered again; cut or
// not, gradients have the same bits (pipeline/stage_inlet.h).
//
// Not thread-safe. Throws what LibTorch throws. When a gather fails the group is aborted, and
// status() says why; what is computed after that is worth nothing.
class ShardedStep {
 public:
  // `ddp` has units, UnitsOf(*model). Both must outlive this object.
  ShardedStep(const ComputeOptions& options, Model* model, DistributedDataParallel* ddp,
              absl::Duration timeout)
      : options_(options), model_(*model), ddp_(*ddp), timeout_(timeout) {}

  // The logits of the last block, with the graph of that block alone.
  at::Tensor Forward(const at::Tensor& images);

  // Backward from `objective`, a function of what Forward() returned last, through all blocks.
  void Backward(const at::Tensor& objective);

  // Collective: the logits of test inputs. Undefined inputs only help the others to their parameters.
  absl::StatusOr<at::Tensor> TestLogits(const at::Tensor& inputs);

  // OK, or what a gather failed with.
  const absl::Status& status() const { return status_; }

 private:
  // Behind a block.
  struct Cut {
    int block = 0;
    at::Tensor output;
    std::unique_ptr<StageInlet> inlet;
  };

  void Need(UnitTurn turn);

  const ComputeOptions options_;
  Model& model_;
  DistributedDataParallel& ddp_;
  const absl::Duration timeout_;
  std::vector<Cut> cuts_;  // of the forward whose backward is to come
  absl::Status status_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TRAIN_SHARDED_STEP_H_
