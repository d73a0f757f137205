// How the job runs its model, in training and in evaluation alike.

#ifndef GRADSYNC_WORKER_TRAIN_FORWARD_H_
#define GRADSYNC_WORKER_TRAIN_FORWARD_H_

#include "ATen/core/Tensor.h"
#include "c10/core/DeviceType.h"
#include "worker/models/autocast_state.h"
#include "worker/models/model.h"
#include "worker/train/compute_options.h"

namespace gradsync {

// While it lives, LibTorch's autocast is on for this thread and device, as torch.autocast has it in
// Python: operations that gain from it cast their inputs, the others see fp32. The cast of a
// parameter is made once while a guard lives. With kFp32 it does nothing.
//
// For forward only: backward casts as forward did and belongs outside. Guards may be nested. To be
// destroyed by the thread that made it. Throws nothing.
class Autocast {
 public:
  // `precision` must have passed CheckPrecision() for `device`.
  Autocast(Precision precision, c10::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool active_;
  const c10::DeviceType device_;
  AutocastState before_;
};

// Gives `model` the memory format and the way of normalising that Forward() expects, in place and
// values unchanged. To be called before a DdpEngine wraps the model, on whose plan
// the strides are. Throws what LibTorch throws for want of memory.
void SetMemoryFormat(const ComputeOptions& options, Model& model);

// The logits of `images` [B, C, H, W], float or already of the precision's type, as fp32 [B,
// classes], or of tokens int64 [B, T] as fp32 [B, T, vocabulary], with a graph if autograd is on.
// Works on the images' device, where the model must be,
// and does not wait for it. Throws what the model throws. Nothing of autocast is left on when it
// returns.
at::Tensor Forward(const ComputeOptions& options, Model& model, const at::Tensor& images);

// The same of blocks [first, end) only (Model::ForwardBlocks()), in the type in which they leave
// it, but fp32 for the last block's logits.
at::Tensor ForwardBlocks(const ComputeOptions& options, Model& model, int first, int end,
                         const at::Tensor& input);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_FORWARD_H_
