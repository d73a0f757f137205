#include "gradsync/exchange.h"

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"
#include "core/group/sync_handle.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/group_impl.h"

namespace gradsync {

class Exchange::Impl {
 public:
  static absl::StatusOr<std::unique_ptr<Impl>> Bind(Group::Impl* group,
                                                    const std::vector<Tensor>& tensors,
                                                    const ExchangeOptions& options) {
    std::vector<TensorSpec> specs;
    for (const Tensor& tensor : tensors) specs.push_back({tensor.name, {tensor.numel}, {1}});
    std::vector<int> order(tensors.size());
    std::iota(order.begin(), order.end(), 0);
    PlanOptions plan_options;
    plan_options.world_size = group->member().group().world_size;
    plan_options.bucket_bytes = options.bucket_bytes;
    plan_options.first_bucket_bytes = options.first_bucket_bytes;
    OptimizerSpec none;  // of the callers' own
    none.groups.emplace_back();
    GS_ASSIGN_OR_RETURN(Plan plan, Plan::Create(std::move(specs), order, none, plan_options));
    GS_RETURN_IF_ERROR(group->TakeSync());
    GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets,
                        group->sync().Bind(plan, group->deadline()));
    return std::unique_ptr<Impl>(new Impl(group, plan, std::move(buckets)));
  }

  int buckets() const { return static_cast<int>(buckets_.size()); }
  int tensors() const { return static_cast<int>(places_.size()); }
  Place place(int tensor) const { return places_[tensor]; }

  Bucket bucket(int number) const {
    const GradBucket& bucket = buckets_[number];
    return {bucket.grad.floats(), bucket.param.floats(), bucket.grad.numel};
  }

  absl::Status Broadcast() { return group_->sync().BroadcastParameters(group_->deadline()); }

  absl::Status Launch(int number) {
    if (number == 0) ++step_.step;
    const SyncHandle launched = group_->sync().Launch(step_, number);
    handles_[number] = launched;
    ++launched_;
    group_->SetInStep(true);
    // What is wrong with a launch is known at once.
    return launched.done() ? launched.Wait(Deadline::Now()) : absl::OkStatus();
  }

  absl::Status Wait(int number) {
    absl::optional<SyncHandle>& handle = handles_[number];
    if (!handle.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "bucket ", number, ": expected one that was launched, found one that was not"));
    }
    GS_RETURN_IF_ERROR(handle->Wait(group_->deadline()));
    handle.reset();
    group_->SetInStep(--launched_ > 0);
    return absl::OkStatus();
  }

 private:
  Impl(Group::Impl* group, const Plan& plan, std::vector<GradBucket> buckets)
      : group_(group),
        buckets_(std::move(buckets)),
        places_(plan.tensors().size()),
        handles_(buckets_.size()) {
    for (size_t b = 0; b < plan.buckets().size(); ++b) {
      for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
        places_[placed.tensor] = {static_cast<int>(b), placed.offset};
      }
    }
  }

  Group::Impl* const group_;
  const std::vector<GradBucket> buckets_;
  std::vector<Place> places_;                        // by tensor
  std::vector<absl::optional<SyncHandle>> handles_;  // by bucket, from its launch to its wait
  int launched_ = 0;                                 // handles that were not waited for
  StepOptions step_;
};

Exchange::Exchange(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Exchange::~Exchange() = default;
Exchange::Exchange(Exchange&&) noexcept = default;

Result<Exchange> Exchange::Bind(Group* group, const std::vector<Tensor>& tensors,
                                const ExchangeOptions& options) {
  absl::StatusOr<std::unique_ptr<Impl>> impl = Impl::Bind(group->impl(), tensors, options);
  if (!impl.ok()) return ToStatus(impl.status());
  return Exchange(*std::move(impl));
}

int Exchange::buckets() const { return impl_->buckets(); }
int Exchange::tensors() const { return impl_->tensors(); }
Bucket Exchange::bucket(int number) const { return impl_->bucket(number); }
Place Exchange::place(int tensor) const { return impl_->place(tensor); }
Status Exchange::Broadcast() { return ToStatus(impl_->Broadcast()); }
Status Exchange::Launch(int number) { return ToStatus(impl_->Launch(number)); }
Status Exchange::Wait(int number) { return ToStatus(impl_->Wait(number)); }

}  // namespace gradsync
