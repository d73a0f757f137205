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
#include <optional>
#include <string>
#include <vector>

#include "gradsync/group.h"
#include "gradsync/optimizer.h"
#include "gradsync/status.h"
#include "torch/nn/module.h"

namespace gradsync {

// What is exchanged at a time, for CommHook. The lists are by parameter; the gradients, of the
// parameters' shapes, are the library's memory.
struct GradientBucket {
  int index = 0;  // in the order in which buckets leave, the same on all ranks
  bool is_last = false;
  std::vector<std::string> names;
  std::vector<at::Tensor> gradients;
};

// Functions that change a bucket's gradients in place, as by noise, a scale or a limit. On a GPU they
// queue work on the current stream and need not wait. What one throws ends the group, and comes out of
// backward() as an Error, kInternal. Empty: nothing is done.
struct CommHook {
  // This rank's own, complete, before they leave: in backward(), on a thread of autograd, one call at
  // a time, in order of buckets. What it takes is backward's time.
  std::function<void(const GradientBucket& bucket)> before;
  // The mean, on the thread that called backward(), before that returns; in order of buckets. The same
  // values come on all ranks, and must be changed alike. Not with Options::update "owner".
  std::function<void(const GradientBucket& bucket)> after;
};

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

  // A parameter that gets no gradient in a backward() counts as zero in the mean, which is over all
  // ranks. Otherwise it is an error that names it. Buckets leave in order, so one with such a parameter,
  // and those behind it, leave when backward ends: forward_backward shows which these are and puts them
  // last. A parameter that no rank used has a gradient of zero, where PyTorch leaves .grad as it was:
  // momentum and weight decay still change it.
  //
  // A rank on which no parameter at all gets one has not begun a step, and the others wait for it
  // until Options::timeout: where that can happen call StepWithoutGradients() in backward()'s place.
  bool find_unused_parameters = false;

  CommHook comm_hook;

  // The library's optimizer instead of one of the program's: when backward() returns, the parameters
  // are updated, and .grad has the mean where Options::update is "worker", else nothing of meaning.
  std::optional<OptimizerOptions> optimizer;
};

// Of one module. Movable; one thread runs the loop. Must not outlive its group; the module may outlive
// both.
//
// While it exists, the module's trainable parameters and their .grad are views of the library's memory,
// which keep their values and stay valid afterwards. The module must not be moved or converted. Every
// trainable parameter, fp32, must get one gradient in each backward() that is not under no_sync(), on
// every rank, unless DdpOptions::find_unused_parameters; one that is used several times, as tied
// weights are, gets their sum. Frozen parameters (requires_grad) and buffers may be of any type and
// size. .grad is overwritten by each such backward(), so an optimizer's zero_grad() may be left out; it
// does no harm.
//
// Several models in one process each have one, over a group of their own (Group::New()). One backward()
// may reach several; those it should not train are frozen for that time, or under no_sync(), after which
// their zero_grad() drops what has been added up.
//
// What goes wrong in backward() is thrown there as Error: kInvalidArgument naming the parameters that
// got no gradient; kDeadlineExceeded, kUnavailable and kAborted naming the rank that is late, lost or
// failed. The group has failed then, on all ranks.
class DistributedDataParallel {
 public:
  // Collective: all ranks' modules alike, on the device of the group, whose parameters and buffers are
  // rank 0's afterwards. One per group. Where Options::update is "owner" there must be an optimizer.
  // Errors: kInvalidArgument naming a parameter or an option;
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

  // Uneven inputs, as PyTorch's join(): while one lives, ranks may do different numbers of steps, that
  // is of backward()s outside of no_sync(). A rank without batches left finishes: it takes part in the
  // others' steps with gradients of zero until no rank has any left. The mean is over all ranks, those
  // that have finished too, as PyTorch's is by default.
  //
  //   {
  //     auto join = ddp.join();
  //     for (const Batch& batch : batches_of_this_rank) { ... }
  //   }
  //
  // All ranks make one around the same loop, also a rank that has no batch at all, and call nothing
  // collective of the group in between, but for what backward() does; DdpOptions::broadcast_buffers then
  // takes rank 0's buffers also when that has finished. A step costs nothing more. A rank
  // that has finished looks into rank 0's store once per step, and all ranks do one more step, of
  // zeros, at the end, by which they see that it is the end. Not with DdpOptions::optimizer.
  class Join {
   public:
    // Finishes, unless that was done or an exception flies; the outcome only Finish() can say.
    ~Join();
    Join(Join&& other) noexcept;
    Join& operator=(Join&&) = delete;

    // Blocks until no rank has batches left; for one step of the others at most Options::timeout.
    //
    // `step` is called after each of the others' steps, which left the mean in .grad: what this rank's
    // loop does after backward(), such as optimizer.step(). Where all ranks pass one, their parameters
    // and their optimizers' states are equal at the end. Otherwise the parameters become those of the
    // first of the ranks with the most batches, and momentum stays each rank's own, as with PyTorch:
    // parameters then differ between ranks from the next step on. Buffers become that rank's in any
    // case.
    //
    // A second call returns the outcome of the first. Errors: those of backward().
    Status Finish(const std::function<void()>& step = nullptr);

   private:
    friend class DistributedDataParallel;
    class Impl;
    explicit Join(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  [[nodiscard]] Join join();

  // In the place of a backward() in which none of this rank's parameters would get a gradient, as for
  // a batch of which nothing can be learned: a step with gradients of zero, but for those of backward()s
  // under no_sync() before it. Afterwards .grad has the mean. Errors: those of backward().
  Status StepWithoutGradients();

  // Between steps, with DdpOptions::optimizer: the learning rate from the next step on. All ranks set
  // the same, or owners end the group.
  void set_learning_rate(double lr);

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
