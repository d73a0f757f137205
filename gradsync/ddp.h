// Trains a LibTorch module on several ranks: the same loop as on one, with gradients that are the mean of
// all ranks' when backward() returns.
//
//   gradsync::Group group = gradsync::Group::Join().value();
//   auto ddp = gradsync::DistributedDataParallel::Create(model.ptr(), group).value();
//   torch::optim::SGD optimizer(model->parameters(), 0.1);
//   for (const Batch& batch : batches_of_this_rank) {
//     optimizer.zero_grad();
//     loss(model->forward(batch.inputs), batch.targets).backward();
//     optimizer.step();
//   }
//
// examples/own_model/own_model.cc is a whole program.

#ifndef GRADSYNC_GRADSYNC_DDP_H_
#define GRADSYNC_GRADSYNC_DDP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gradsync/group.h"
#include "gradsync/status.h"
#include "torch/nn/module.h"

namespace gradsync {

struct DdpOptions {
  // A bucket of gradients is what is exchanged at a time, while backward goes on: it is closed before
  // a gradient that would make it larger than this. The same on all ranks, as all of these are.
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;  // the same for the first

  // Copies rank 0's buffers, such as BatchNorm's statistics, to all ranks after each backward(), which
  // costs a round trip. Otherwise they drift apart until BroadcastBuffers().
  bool broadcast_buffers = false;

  // Runs one forward and backward on any batch, once, on rank 0, to see in which order gradients come.
  // Empty: the reverse of the order in which parameters were registered.
  std::function<void()> forward_backward;
};

// Of one module. Movable; one thread runs the loop. Must not outlive its group; the module may outlive
// both.
//
// While it exists, the module's trainable parameters and their .grad are views of the library's memory,
// which keep their values and stay valid afterwards. The module must not be moved or converted. Every
// trainable parameter, fp32, must get one gradient in each backward() that is not under NoSync(), on
// every rank. .grad is overwritten by each such backward(), so an optimizer's zero_grad() may be left
// out; it does no harm.
//
// What goes wrong in backward() is thrown there as Error: kInvalidArgument naming the parameters that
// got no gradient; kDeadlineExceeded, kUnavailable and kAborted naming the rank that is late, lost or
// failed. The group has failed then, on all ranks.
class DistributedDataParallel {
 public:
  // Collective: all ranks' modules alike, on the device of the group, whose parameters and buffers are
  // rank 0's afterwards. One per group. Errors: kInvalidArgument naming a parameter or an option;
  // kFailedPrecondition when ranks have different modules, naming the first difference; those of the
  // group.
  static Result<DistributedDataParallel> Create(std::shared_ptr<torch::nn::Module> module,
                                                Group& group,
                                                const DdpOptions& options = DdpOptions());

  ~DistributedDataParallel();
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) = delete;

  // While one lives, each backward() only adds its gradients to those before it, of micro-batches. The
  // first backward() after it exchanges their sum with its own gradients: divide the loss by the number
  // of micro-batches, as with PyTorch's no_sync().
  class NoSync {
   public:
    ~NoSync();
    NoSync(NoSync&& other) noexcept;
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend class DistributedDataParallel;
    class Impl;
    explicit NoSync(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  [[nodiscard]] NoSync no_sync();

  // Collective, between steps: all ranks' buffers become rank 0's. Errors: those of the group.
  Status BroadcastBuffers();

  // SHA-256 of all trainable parameters, in hexadecimal digits: equal on all ranks after every step.
  std::string ParametersSha256() const;

 private:
  class Impl;
  explicit DistributedDataParallel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_H_
