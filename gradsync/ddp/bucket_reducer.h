// Autograd hooks that fill the flat gradient buckets and start their exchange while backward still
// runs.

#ifndef GRADSYNC_GRADSYNC_DDP_BUCKET_REDUCER_H_
#define GRADSYNC_GRADSYNC_DDP_BUCKET_REDUCER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "gradsync/ddp/flat_parameters.h"

namespace gradsync {

// How gradients get into their bucket.
enum class BucketCopies {
  kEach,      // each as it arrives
  kTogether,  // those of a bucket by one operation when the last of them arrives, which on a GPU is
              // one kernel instead of one per gradient; until then they keep their memory
};

// Sees every gradient of the bound parameters, at the moment at which autograd would accumulate it
// into .grad:
//
//   - copies it into the parameter's place in the bucket, or adds it when the place already holds
//     one of this step (earlier micro-batches under no_sync), so that nothing has to be zeroed and
//     .grad stays a view;
//   - counts the bucket's parameters, and calls `launch` for each bucket whose gradients are
//     complete, in index order: a bucket that is complete early waits for those before it.
//
// The other way, zeroing the bucket and letting autograd add into .grad, is slower. CPU time of
// forward and backward over 45 MB of parameters, one thread, medians of 40 steps that alternate
// between the ways, LibTorch 1.13: linear, batch 8, 24.3 against 26.9 ms; linear, batch 64, 48.0
// against 50.9; 3x3 convolutions 56.9 against 58.5 and 94.0 against 96.0. Only a parameter that has
// tensor hooks of the user's goes that way, because those run later than ours.
//
// Misuse inside backward is recorded, stops all further launches of the step, and is returned by
// FinishBackward(): hooks never throw into the user's backward.
//
// Thread-safe as far as autograd needs it: hooks may come on any thread, `launch` is called under a
// lock, one call at a time; the methods are for the thread that runs the training loop, between
// backwards. Nothing blocks. Graphs that outlive this object find its hooks inactive.
class BucketReducer {
 public:
  // `parameters` in plan order, bound. `launch` must not throw or wait, and is not called after the
  // destructor. Nor is `on_gradient`, which may be null and must not throw: it is called as
  // `launch` is, on the thread that runs backward, for each parameter (index into Plan::tensors())
  // whose gradient of the step is complete, before the launch of the bucket that it completes. What
  // it takes is backward's time.
  //
  // Where the plan has slots of gradients, `make_room` is called before the first write of a step
  // to a bucket whose memory another one had in the same step, and which was launched: it waits
  // until that one's handle has resolved. Gradients that come before it was launched keep their
  // own memory until then. Micro-batches cannot be added up there.
  //
  // `on_backward`, unless null, is called in place of BeginStep() by the first gradient outside of
  // no_sync after FinishBackward(), which returns its error; it must not throw. .grad is the caller's
  // between steps then: where it was set to none, what no_sync has added up there is dropped, and it
  // is the bucket's again before the first gradient of a backward, or by BeginStep().
  BucketReducer(const Plan& plan, const FlatParameters& parameters,
                std::function<void(int bucket)> launch,
                std::function<void(int parameter)> on_gradient = nullptr,
                BucketCopies copies = BucketCopies::kEach,
                std::function<absl::Status(int bucket)> make_room = nullptr,
                std::function<absl::Status()> on_backward = nullptr);
  ~BucketReducer();

  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  // From here on backward outside no_sync launches buckets. Gradients that were accumulated under
  // no_sync since the last step are kept and added to. Errors: FAILED_PRECONDITION when the step
  // before was not finished, or when a backward ran outside of steps since.
  absl::Status BeginStep();

  // Instead of backward: all gradients of the step under way are in their buckets, and the caller
  // launches these. For a backward that ran as a captured graph, whose hooks nobody calls.
  void SkipBackward();

  // After backward, before FinishBackward(): a parameter without a gradient in the step under way
  // counts as zero, but for what no_sync has added up, and its bucket is launched. Does nothing
  // where FinishBackward() has an error to return anyway.
  void CompleteWithZeros();

  // After backward. On success all buckets were launched. The next step starts with empty gradients
  // in any case. Errors: INVALID_ARGUMENT naming the parameters without a gradient, the one with
  // two, or the one whose gradient is not dense or has another type than the leaf;
  // FAILED_PRECONDITION when no step is under way, no_sync is active, or a .grad left its bucket
  // (named).
  absl::Status FinishBackward();

  // Nestable. In between, gradients are only accumulated: nothing is counted or launched.
  void EnterNoSync();
  void LeaveNoSync();

  // The same for some parameters, indices into Plan::tensors(), of which one thread alone runs
  // backward, while others run that of other parameters. It may be called then.
  void EnterNoSync(const std::vector<int>& parameters);
  void LeaveNoSync(const std::vector<int>& parameters);

 private:
  class Core;
  std::shared_ptr<Core> core_;  // hooks hold it weakly
  // A parameter holds its accumulation node weakly, and the hooks with it. These are LibTorch's
  // pointers to nodes, whose type depends on its version.
  std::vector<std::shared_ptr<void>> accumulators_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_BUCKET_REDUCER_H_
