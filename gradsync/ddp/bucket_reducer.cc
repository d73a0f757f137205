#include "gradsync/ddp/bucket_reducer.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/zeros_like.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "core/base/mutex.h"
#include "gradsync/ddp/name_list.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/version.h"

#if TORCH_VERSION_MAJOR >= 2
#include "ATen/ops/_foreach_copy.h"
#endif

namespace gradsync {

using torch::autograd::variable_list;
using torch::autograd::utils::LambdaPostHook;

namespace {

// Whether equal indices are at equal places in memory. Strides of dimensions of size 1 say nothing,
// and libraries fill them in differently.
bool SameLayout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.device() != b.device()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

// The elements of a dense tensor as they lie.
at::Tensor InMemoryOrder(const at::Tensor& dense) {
  c10::NoGradGuard no_grad;
  return dense.as_strided({dense.numel()}, {1});
}

void CopyAll(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  c10::NoGradGuard no_grad;
#if TORCH_VERSION_MAJOR >= 2
  at::_foreach_copy_(to, from);
#else
  for (size_t i = 0; i < to.size(); ++i) at::Tensor(to[i]).copy_(from[i]);
#endif
}

}  // namespace

class BucketReducer::Core {
 public:
  Core(const Plan& plan, const FlatParameters& parameters, std::function<void(int)> launch,
       std::function<void(int)> on_gradient, BucketCopies copies,
       std::function<absl::Status(int)> make_room, std::function<absl::Status()> on_backward)
      : launch_(std::move(launch)),
        on_gradient_(std::move(on_gradient)),
        make_room_(std::move(make_room)),
        on_backward_(std::move(on_backward)),
        slots_(plan.slots().gradients),
        together_(copies == BucketCopies::kTogether) {
    for (const FlatParameter& p : parameters.parameters()) {
      awaited_.push_back({p, InMemoryOrder(p.grad), at::Tensor(), 0, false, false});
    }
    for (const BucketPlan& bucket : plan.buckets()) {
      bucket_sizes_.push_back(static_cast<int>(bucket.tensors.size()));
      bucket_tensors_.emplace_back();
      for (const PlacedTensor& placed : bucket.tensors) {
        bucket_tensors_.back().push_back(placed.tensor);
      }
      paddings_.push_back(slots_ > 0 ? PaddingOf(bucket) : std::vector<at::Tensor>());
    }
    Reset();
  }

  absl::Status BeginStep() {
    MutexLock lock(&mutex_);
    if (in_step_) {
      return absl::FailedPreconditionError(
          "a step begins before the one before was finished: call FinishStep() after backward");
    }
    if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
    if (on_backward_ != nullptr) TakeGradientsBack();
    in_step_ = true;
    return absl::OkStatus();
  }

  void CompleteWithZeros() {
    MutexLock lock(&mutex_);
    for (const std::vector<int>& tensors : bucket_tensors_) {
      for (const int index : tensors) {
        if (!in_step_ || no_sync_ > 0 || !error_.ok()) return;
        if (!awaited_[index].ready) GiveZeros(index);
      }
    }
  }

  absl::Status FinishBackward() {
    MutexLock lock(&mutex_);
    absl::Status status = std::move(error_);
    if (status.ok()) status = CheckComplete();
    Reset();
    return status;
  }

  void SkipBackward() {
    MutexLock lock(&mutex_);
    for (Awaited& awaited : awaited_) awaited.ready = true;
    next_ = pending_.size();
  }

  void AddNoSync(int change) {
    MutexLock lock(&mutex_);
    no_sync_ += change;
  }

  void AddNoSync(int change, const std::vector<int>& parameters) {
    MutexLock lock(&mutex_);
    for (const int parameter : parameters) awaited_[parameter].no_sync += change;
  }

  // Before AccumulateGrad runs: takes the gradient. An undefined tensor makes AccumulateGrad leave
  // .grad alone.
  variable_list TakeGradient(int index, const variable_list& grads) {
    MutexLock lock(&mutex_);
    Awaited& awaited = awaited_[index];
    if (on_backward_ != nullptr && !in_step_) BeginBackward(awaited);
    if (!MayTake(awaited) || grads.size() != 1) return variable_list(grads.size());
    if (CanMakeRoom(awaited.parameter.bucket) && !MakeRoom(awaited.parameter.bucket)) {
      return variable_list(1);
    }
    try {
      return Fill(&awaited, grads[0]);
    } catch (const std::exception& error) {
      Record(absl::InternalError(
          absl::StrCat("copying the gradient of ", awaited.parameter.name, ": ", error.what())));
      return variable_list(1);
    }
  }

  // After AccumulateGrad: the gradient is in the bucket.
  void CountGradient(int index) {
    MutexLock lock(&mutex_);
    if (error_.ok() && in_step_) Count(index);
  }

 private:
  struct Awaited {
    FlatParameter parameter;
    at::Tensor flat;     // parameter.grad
    at::Tensor waiting;  // a gradient in memory order that is to be copied there with others
    int no_sync;         // guards of this parameter alone
    bool filled;         // the bucket holds a gradient of this step, or one waits
    bool ready;          // and it is complete
  };

  // What lies between and behind the tensors of a bucket, which must be zero, and where another
  // bucket's gradients were.
  std::vector<at::Tensor> PaddingOf(const BucketPlan& bucket) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::vector<at::Tensor> paddings;
    for (size_t i = 0; i < bucket.tensors.size(); ++i) {
      const at::Tensor& flat = awaited_[bucket.tensors[i].tensor].flat;
      const int64_t end = bucket.tensors[i].offset + flat.numel();
      const int64_t next =
          i + 1 < bucket.tensors.size() ? bucket.tensors[i + 1].offset : bucket.numel;
      if (end == next) continue;
      paddings.push_back(flat.as_strided({next - end}, {1}, flat.storage_offset() + flat.numel()));
    }
    return paddings;
  }

  // The gradient of a parameter that counts in this step is in the bucket.
  void Count(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Awaited& awaited = awaited_[index];
    if (IsHeld(awaited)) return;
    Record(FlatParameters::CheckGradient(awaited.parameter));
    if (!error_.ok()) return;
    awaited.ready = true;
    if (on_gradient_ != nullptr) on_gradient_(index);
    if (--pending_[awaited.parameter.bucket] == 0 && has_room_[awaited.parameter.bucket] &&
        !CopyTogether(awaited.parameter.bucket)) {
      return;
    }
    while (next_ < pending_.size() && pending_[next_] == 0) {
      const int bucket = static_cast<int>(next_);
      if (!has_room_[bucket] && !(MakeRoom(bucket) && CopyTogether(bucket))) return;
      ++next_;
      launch_(bucket);
    }
  }

  void GiveZeros(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Awaited& awaited = awaited_[index];
    const int bucket = awaited.parameter.bucket;
    if (CanMakeRoom(bucket) && !MakeRoom(bucket)) return;
    try {
      Fill(&awaited, at::Tensor());
    } catch (const std::exception& error) {
      return Record(absl::InternalError(
          absl::StrCat("zeroing the gradient of ", awaited.parameter.name, ": ", error.what())));
    }
    Count(index);
  }

  // An optimizer's zero_grad() may have set gradients to none, and so what was added up in them.
  void TakeGradientsBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Awaited& awaited : awaited_) {
      const at::Tensor& leaf = awaited.parameter.leaf;
      if (leaf.grad().defined()) continue;
      leaf.mutable_grad() = awaited.parameter.grad;
      awaited.filled = false;
    }
  }

  void BeginBackward(const Awaited& first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    TakeGradientsBack();
    if (IsHeld(first)) return;
    in_step_ = true;
    Record(on_backward_());
  }

  // Whether a bucket may have its memory now, and has it not yet.
  bool CanMakeRoom(int bucket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !has_room_[bucket] && bucket - slots_ < static_cast<int>(next_);
  }

  // False: error_ says why there is none.
  bool MakeRoom(int bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (bucket >= slots_ && make_room_ != nullptr) Record(make_room_(bucket));
    if (!error_.ok()) return false;
    c10::NoGradGuard no_grad;
    for (const at::Tensor& padding : paddings_[bucket]) padding.zero_();
    has_room_[bucket] = true;
    return true;
  }

  void Record(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (error_.ok()) error_ = std::move(status);
  }

  // Whether gradients are only added up.
  bool IsHeld(const Awaited& awaited) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return no_sync_ > 0 || awaited.no_sync > 0;
  }

  // Whether the awaited's memory may be written; if not, says why in error_.
  bool MayTake(const Awaited& awaited) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!error_.ok()) return false;
    if (awaited.ready) {
      Record(absl::InvalidArgumentError(absl::StrCat(
          "parameter ", awaited.parameter.name,
          " got its gradient twice in one step: expected one backward per step without reentrant "
          "ones; run earlier micro-batches under NoSync()")));
    } else if (slots_ > 0 && IsHeld(awaited)) {
      Record(absl::FailedPreconditionError(
          "NoSync(): expected one backward per step where buckets share their gradients' memory, "
          "found one of several"));
    } else if (!in_step_ && !IsHeld(awaited)) {
      Record(absl::FailedPreconditionError(
          absl::StrCat("backward reached parameter ", awaited.parameter.name,
                       " outside of a step: expected it between BeginStep() and FinishStep(), or "
                       "under NoSync()")));
    }
    return error_.ok();
  }

  variable_list Fill(Awaited* awaited, const at::Tensor& gradient)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    c10::NoGradGuard no_grad;
    const at::Tensor& place = awaited->parameter.grad;
    const bool first = !std::exchange(awaited->filled, true);
    const bool has_room = has_room_[awaited->parameter.bucket];
    if (!gradient.defined()) {
      if (first && has_room) place.zero_();
      if (!has_room) awaited->waiting = at::zeros_like(awaited->flat);
      return variable_list(1);
    }
    const at::Tensor& leaf = awaited->parameter.leaf;
    if (gradient.layout() != at::kStrided || gradient.scalar_type() != leaf.scalar_type()) {
      Record(absl::InvalidArgumentError(absl::StrCat(
          "gradient of ", awaited->parameter.name, ": expected dense ",
          c10::toString(leaf.scalar_type()), ", found ", c10::toString(gradient.scalar_type()),
          gradient.layout() == at::kStrided ? "" : " in a sparse layout")));
      return variable_list(1);
    }
    if (!torch::autograd::impl::hooks(leaf).empty()) {
      const bool copied = !leaf.is_same(awaited->parameter.parameter);
      if (!has_room || copied) {
        Record(absl::FailedPreconditionError(
            absl::StrCat("gradient of ", awaited->parameter.name, ": expected no hooks where ",
                         copied ? "a copy of the weight is computed with"
                                : "buckets share memory, and a gradient that comes in order")));
        return variable_list(1);
      }
      if (first) place.zero_();
      return {gradient};
    }
    if (!has_room) {
      const bool as_it_lies = SameLayout(gradient, place);
      at::Tensor kept = as_it_lies ? gradient : at::empty_like(place);
      if (!as_it_lies) kept.copy_(gradient);
      awaited->waiting = InMemoryOrder(kept);
    } else if (first && together_ && in_step_ && !IsHeld(*awaited) && SameLayout(gradient, place)) {
      awaited->waiting = InMemoryOrder(gradient);
    } else if (first) {
      place.copy_(gradient);
    } else {
      place.add_(gradient);
    }
    return variable_list(1);
  }

  // Empties a bucket's waiting gradients into it; false when that failed.
  bool CopyTogether(int bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // By type, since one operation takes one.
    std::vector<at::Tensor> to[2], from[2];
    for (const int tensor : bucket_tensors_[bucket]) {
      Awaited& awaited = awaited_[tensor];
      if (!awaited.waiting.defined()) continue;
      const size_t other_type = awaited.waiting.scalar_type() != awaited.flat.scalar_type();
      to[other_type].push_back(awaited.flat);
      from[other_type].push_back(std::exchange(awaited.waiting, at::Tensor()));
    }
    try {
      for (const size_t type : {0, 1}) {
        if (!to[type].empty()) CopyAll(to[type], from[type]);
      }
    } catch (const std::exception& error) {
      Record(absl::InternalError(
          absl::StrCat("copying the gradients of bucket ", bucket, ": ", error.what())));
    }
    return error_.ok();
  }

  absl::Status CheckComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!in_step_) {
      return absl::FailedPreconditionError("no step is under way: call BeginStep() before forward");
    }
    if (no_sync_ > 0) {
      return absl::FailedPreconditionError(
          "the step ends under NoSync(): the last backward of a step must run outside of it");
    }
    std::vector<std::string> missing;
    for (const Awaited& awaited : awaited_) {
      if (!awaited.ready) missing.push_back(awaited.parameter.name);
    }
    if (missing.empty()) return absl::OkStatus();
    if (missing.size() == awaited_.size()) {
      return absl::InvalidArgumentError(
          "no parameter got a gradient: expected one backward between BeginStep() and "
          "FinishStep()");
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a gradient for each of ", awaited_.size(), " parameters, found none for ",
        NameList(missing), ": use them in every forward or freeze them (requires_grad)"));
  }

  void Reset() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    error_ = absl::OkStatus();
    in_step_ = false;
    for (Awaited& awaited : awaited_) {
      awaited.filled = awaited.ready = false;
      awaited.waiting = at::Tensor();
    }
    pending_ = bucket_sizes_;
    has_room_.assign(bucket_sizes_.size(), slots_ == 0);
    next_ = 0;
  }

  const std::function<void(int)> launch_;
  const std::function<void(int)> on_gradient_;        // or null
  const std::function<absl::Status(int)> make_room_;  // or null
  const std::function<absl::Status()> on_backward_;   // or null
  const int slots_;                                   // of gradients; 0: each bucket has its own
  const bool together_;
  std::vector<int> bucket_sizes_;                  // parameters per bucket
  std::vector<std::vector<int>> bucket_tensors_;   // which
  std::vector<std::vector<at::Tensor>> paddings_;  // by bucket; none without slots
  Mutex mutex_;
  std::vector<Awaited> awaited_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> pending_ ABSL_GUARDED_BY(mutex_);    // parameters per bucket still to come
  std::vector<bool> has_room_ ABSL_GUARDED_BY(mutex_);  // bucket's memory is its own now
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;             // bucket to launch next
  bool in_step_ ABSL_GUARDED_BY(mutex_) = false;
  int no_sync_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

namespace {

// FunctionPreHook has no lambda form.
template <typename Function>
class LambdaPreHook : public torch::autograd::FunctionPreHook {
 public:
  explicit LambdaPreHook(Function function) : function_(std::move(function)) {}
  variable_list operator()(const variable_list& grads) override { return function_(grads); }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<torch::autograd::FunctionPreHook> MakePreHook(Function function) {
  return std::make_unique<LambdaPreHook<Function>>(std::move(function));
}

}  // namespace

BucketReducer::BucketReducer(const Plan& plan, const FlatParameters& parameters,
                             std::function<void(int bucket)> launch,
                             std::function<void(int parameter)> on_gradient, BucketCopies copies,
                             std::function<absl::Status(int bucket)> make_room,
                             std::function<absl::Status()> on_backward)
    : core_(std::make_shared<Core>(plan, parameters, std::move(launch), std::move(on_gradient),
                                   copies, std::move(make_room), std::move(on_backward))) {
  for (size_t i = 0; i < parameters.parameters().size(); ++i) {
    const int index = static_cast<int>(i);
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters.parameters()[i].leaf);
    std::weak_ptr<Core> weak = core_;
    accumulator->add_pre_hook(MakePreHook([weak, index](const variable_list& grads) {
      const std::shared_ptr<Core> core = weak.lock();
      return core != nullptr ? core->TakeGradient(index, grads) : grads;
    }));
    accumulator->add_post_hook(std::make_unique<LambdaPostHook>(
        [weak, index](const variable_list& outputs, const variable_list&) {
          if (const std::shared_ptr<Core> core = weak.lock()) core->CountGradient(index);
          return outputs;
        }));
    accumulators_.push_back(std::make_shared<decltype(accumulator)>(std::move(accumulator)));
  }
}

BucketReducer::~BucketReducer() = default;

absl::Status BucketReducer::BeginStep() { return core_->BeginStep(); }
void BucketReducer::SkipBackward() { core_->SkipBackward(); }
void BucketReducer::CompleteWithZeros() { core_->CompleteWithZeros(); }
absl::Status BucketReducer::FinishBackward() { return core_->FinishBackward(); }
void BucketReducer::EnterNoSync() { core_->AddNoSync(1); }
void BucketReducer::LeaveNoSync() { core_->AddNoSync(-1); }
void BucketReducer::EnterNoSync(const std::vector<int>& parameters) {
  core_->AddNoSync(1, parameters);
}
void BucketReducer::LeaveNoSync(const std::vector<int>& parameters) {
  core_->AddNoSync(-1, parameters);
}

}  // namespace gradsync
