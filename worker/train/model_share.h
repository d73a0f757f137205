// What a rank has of the model that it trains, and what follows from that: all of it, a stage
// (worker/train/pipeline_stage.h), a slice (worker/train/tensor_slice.h), or no more than it
// computes with at a time (worker/train/sharded_step.h).

#ifndef GRADSYNC_WORKER_TRAIN_MODEL_SHARE_H_
#define GRADSYNC_WORKER_TRAIN_MODEL_SHARE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/models/loss.h"
#include "worker/models/model.h"
#include "worker/train/forward.h"
#include "worker/train/step_times.h"

namespace gradsync {

// This class is a rank that has the whole model, as most have; others derive from it. Not
// thread-safe. Methods that return a tensor or nothing throw what LibTorch throws. A failure is the
// job's; calls after it return it again.
class ModelShare {
 public:
  ModelShare(const ComputeOptions& compute, std::shared_ptr<Model> model)
      : compute_(compute), model_(std::move(model)) {}
  virtual ~ModelShare() = default;

  // For DdpEngine::Create(). The workers that train the same share on other samples,
  // null where those are all of the job; and the options of these names.
  virtual SideChannel* replicas() const { return nullptr; }
  virtual absl::optional<DdpPart> part() const { return absl::nullopt; }
  virtual std::vector<std::vector<std::string>> units() const { return {}; }

  // Collective, once, when `ddp` has the share; it must outlive this object.
  virtual absl::Status Begin(DdpEngine* ddp);

  // One batch of a step: the output of the model, the loss of that, and backward from a function of
  // the loss.
  virtual at::Tensor Forward(const at::Tensor& inputs);
  virtual SlicedLoss Loss(const at::Tensor& logits, const at::Tensor& labels,
                          double label_smoothing);
  virtual void Backward(const at::Tensor& objective);

  // OK, or why another rank's part did not come in forward or backward, of which LibTorch's words
  // have lost the code.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // The logits of a batch of an evaluation; undefined where another rank has them, which then
  // counts it. Collective over those that have parts of one model. Errors: those of the links
  // between them; INTERNAL when LibTorch throws.
  virtual absl::StatusOr<at::Tensor> TestLogits(const at::Tensor& inputs);

  // Whether all workers must call TestLogits() equally often, with an undefined tensor where they
  // have no samples left.
  virtual bool tests_in_step() const { return false; }

  // Collective, between steps. Errors: INTERNAL, beginning with `where`, for a parameter or a
  // buffer that is not finite.
  virtual absl::Status CheckFiniteParameters(const std::string& where, Deadline deadline);

  // Collective, between steps: FlatParameters::Sha256() of the whole model, on every rank.
  virtual absl::StatusOr<std::string> ParamsSha256(Deadline deadline);

  // Leaves the ranks that have other parts in good order, after the last exchange with them.
  virtual absl::Status Finish() { return absl::OkStatus(); }

  // So far. All zero for a rank that has the whole model.
  virtual ShareTraffic traffic() const { return {}; }

 protected:
  const ComputeOptions& compute() const { return compute_; }
  Model& model() const { return *model_; }
  DdpEngine& ddp() const { return *ddp_; }  // after Begin()

 private:
  const ComputeOptions compute_;
  const std::shared_ptr<Model> model_;
  DdpEngine* ddp_ = nullptr;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_MODEL_SHARE_H_
