#include "gradsync/ddp.h"

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/plan.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gradsync/ddp/joined_ranks.h"
#include "gradsync/group_impl.h"
#include "gradsync/join/torch_adapters.h"
#include "torch/csrc/autograd/engine.h"

namespace gradsync {
namespace {

// Whoever links this file links LibTorch.
[[maybe_unused]] const bool kAdapters = SetAdapters(TorchAdapters);

OptimizerKind KindOf(OptimizerOptions::Kind kind) {
  switch (kind) {
    case OptimizerOptions::Kind::kSgd:
      return OptimizerKind::kSgd;
    case OptimizerOptions::Kind::kAdam:
      return OptimizerKind::kAdam;
    case OptimizerOptions::Kind::kAdamW:
      return OptimizerKind::kAdamW;
  }
  return OptimizerKind::kSgd;
}

OptimizerSpec SpecOf(const OptimizerOptions& options) {
  OptimizerSpec spec;
  spec.kind = KindOf(options.kind);
  for (const OptimizerOptions::Group& from : options.groups) {
    OptimizerGroup& group = spec.groups.emplace_back();
    group.lr_scale = from.lr_scale;
    group.weight_decay = from.weight_decay;
    group.momentum = from.momentum;
    group.dampening = from.dampening;
    group.nesterov = from.nesterov;
    group.beta1 = from.beta1;
    group.beta2 = from.beta2;
    group.eps = from.eps;
  }
  return spec;
}

absl::Status CallHook(const std::function<void(const GradientBucket& bucket)>& hook,
                      const GradientBucket& bucket) {
  try {
    hook(bucket);
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat("comm_hook threw in bucket ", bucket.index, ": ", FirstLine(error.what())));
  } catch (...) {
    return absl::InternalError(absl::StrCat("comm_hook threw in bucket ", bucket.index,
                                            " something that is no std::exception"));
  }
}

}  // namespace

// A step is a backward outside of NoSync(), or what stands for one.
class DistributedDataParallel::Impl {
 public:
  explicit Impl(Group::Impl* group) : group_(group) {}

  absl::Status Bind(std::shared_ptr<torch::nn::Module> module, const DdpOptions& options);

  // On the thread of a backward that has reached the first of the module's parameters.
  void AwaitEndOfBackward() {
    group_->SetInStep(true);
    torch::autograd::Engine::get_default_engine().queue_callback([this] {
      absl::Status ended = engine_->FinishStep(group_->deadline());
      if (ended.ok()) ended = EndStep();
      // Before what is thrown can end this rank for a reason that follows from this one.
      if (!ended.ok()) group_->Fail(ended).IgnoreError();
      ToStatus(ended).OrThrow();
    });
  }

  absl::Status StepWithoutGradients() {
    GS_RETURN_IF_ERROR(StepOfZeros());
    return EndStep();
  }

  // Takes part in the others' steps until no rank has batches left. `number`: of this use of join().
  absl::Status FollowOthers(int64_t number, const std::function<void()>& step);

  DdpEngine& engine() const { return *engine_; }
  Deadline deadline() const { return group_->deadline(); }
  int64_t CountJoin() { return joins_++; }

 private:
  GradientBucket BucketOf(int bucket) const;

  absl::Status StepOfZeros() {
    group_->SetInStep(true);
    return engine_->StepOfZeros(group_->deadline());
  }

  absl::Status EndStep() {
    if (broadcast_buffers_) GS_RETURN_IF_ERROR(engine_->BroadcastBuffers(group_->deadline()));
    group_->SetInStep(false);
    return absl::OkStatus();
  }

  Group::Impl* const group_;
  bool broadcast_buffers_ = false;
  bool own_optimizer_ = false;  // the library's
  CommHook comm_hook_;
  std::vector<GradientBucket> buckets_;  // where there is a hook
  int64_t joins_ = 0;
  std::unique_ptr<DdpEngine> engine_;  // last: its hooks use the above
};

absl::Status DistributedDataParallel::Impl::Bind(std::shared_ptr<torch::nn::Module> module,
                                                 const DdpOptions& options) {
  const JobSpec& job = group_->member().options().job;
  const UpdateSite site = group_->sync().update_site();
  broadcast_buffers_ = options.broadcast_buffers;
  own_optimizer_ = options.optimizer.has_value();
  comm_hook_ = options.comm_hook;
  if (site == UpdateSite::kOwner && !own_optimizer_) {
    return absl::InvalidArgumentError(
        "DdpOptions::optimizer: expected one where Options::update is owner, found none");
  }
  if (site == UpdateSite::kOwner && comm_hook_.after != nullptr) {
    return absl::InvalidArgumentError(
        "DdpOptions::comm_hook.after: expected none where Options::update is owner, whose mean no "
        "rank has, found one");
  }
  const OptimizerOptions optimizer = options.optimizer.value_or(OptimizerOptions());
  GS_RETURN_IF_ERROR(CheckClipping(job, optimizer.max_norm));
  DdpEngineOptions engine;
  engine.optimizer = SpecOf(optimizer);
  if (optimizer.group_of != nullptr) {
    engine.group_of = [group_of = optimizer.group_of](const TensorSpec& tensor) {
      return group_of(tensor.name);
    };
  }
  engine.updates = own_optimizer_;
  engine.plan.bucket_bytes = options.bucket_bytes;
  engine.plan.first_bucket_bytes = options.first_bucket_bytes;
  engine.plan.codec = job.codec;
  engine.forward_backward = options.forward_backward;
  engine.find_unused_parameters = options.find_unused_parameters;
  if (comm_hook_.before != nullptr) {
    engine.before_exchange = [this](int b) { return CallHook(comm_hook_.before, buckets_[b]); };
  }
  if (comm_hook_.after != nullptr) {
    engine.after_exchange = [this](int b) { return CallHook(comm_hook_.after, buckets_[b]); };
  }
  engine.on_backward = [this] { AwaitEndOfBackward(); };
  engine.activity = group_->member().activity().get();
  engine.timeout = group_->timeout();
  GS_RETURN_IF_ERROR(group_->TakeSync(site));
  GS_ASSIGN_OR_RETURN(engine_,
                      DdpEngine::Create(std::move(module), &group_->sync(),
                                        &group_->member().side_channel(), std::move(engine)));
  const int buckets = static_cast<int>(engine_->plan().buckets().size());
  for (int b = 0; b < buckets; ++b) buckets_.push_back(BucketOf(b));
  StepOptions steps;
  steps.lr = optimizer.lr;
  steps.max_norm = optimizer.max_norm;
  steps.inverse_loss_scale = 1;
  engine_->SetNextSteps(steps);
  return absl::OkStatus();
}

GradientBucket DistributedDataParallel::Impl::BucketOf(int bucket) const {
  const std::vector<BucketPlan>& plans = engine_->plan().buckets();
  GradientBucket result;
  result.index = bucket;
  result.is_last = bucket + 1 == static_cast<int>(plans.size());
  for (const PlacedTensor& placed : plans[bucket].tensors) {
    const FlatParameter& parameter = engine_->parameters().parameters()[placed.tensor];
    result.names.push_back(parameter.name);
    result.gradients.push_back(parameter.grad);
  }
  return result;
}

absl::Status DistributedDataParallel::Impl::FollowOthers(int64_t number,
                                                         const std::function<void()>& step) {
  if (own_optimizer_) {
    return absl::FailedPreconditionError(
        "join(): expected an optimizer of the program's, found DdpOptions::optimizer, which would "
        "take the last step, of zeros alone, for one of the job's");
  }
  if (group_->member().side_channel().world_size() == 1) return absl::OkStatus();
  JoinedRanks joined(group_->member().group(), absl::StrCat(number));
  GS_RETURN_IF_ERROR(joined.Publish(engine_->step(), step != nullptr, group_->deadline()));
  for (;;) {
    GS_RETURN_IF_ERROR(StepOfZeros());
    GS_ASSIGN_OR_RETURN(const bool over, joined.NobodyDid(engine_->step(), group_->deadline()));
    if (over) break;
    GS_RETURN_IF_ERROR(EndStep());
    if (step != nullptr) step();
  }
  const int source = joined.RankWithMost();
  if (!joined.AllFollow()) {
    GS_RETURN_IF_ERROR(engine_->BroadcastParameters(group_->deadline(), source));
  }
  GS_RETURN_IF_ERROR(engine_->BroadcastBuffers(group_->deadline(), source));
  group_->SetInStep(false);
  return absl::OkStatus();
}

DistributedDataParallel::DistributedDataParallel(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
DistributedDataParallel::~DistributedDataParallel() = default;
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;

Result<DistributedDataParallel> DistributedDataParallel::Create(
    std::shared_ptr<torch::nn::Module> module, Group& group, const DdpOptions& options) {
  auto impl = std::make_unique<Impl>(group.impl());
  const absl::Status bound = impl->Bind(std::move(module), options);
  if (!bound.ok()) return group.Fail(ToStatus(bound));
  return DistributedDataParallel(std::move(impl));
}

class DistributedDataParallel::NoSync::Impl {
 public:
  explicit Impl(DdpEngine& engine) : guard_(engine.NoSync()) {}

 private:
  const DdpEngine::NoSyncGuard guard_;
};

DistributedDataParallel::NoSync::NoSync(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DistributedDataParallel::NoSync::~NoSync() = default;
DistributedDataParallel::NoSync::NoSync(NoSync&&) noexcept = default;

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() {
  return NoSync(std::make_unique<NoSync::Impl>(impl_->engine()));
}

class DistributedDataParallel::Join::Impl {
 public:
  explicit Impl(DistributedDataParallel::Impl* ddp) : ddp_(ddp), number_(ddp->CountJoin()) {}

  Status Finish(const std::function<void()>& step) {
    if (!std::exchange(finished_, true)) outcome_ = ToStatus(ddp_->FollowOthers(number_, step));
    return outcome_;
  }

 private:
  DistributedDataParallel::Impl* const ddp_;
  const int64_t number_;
  bool finished_ = false;
  Status outcome_;
};

DistributedDataParallel::Join::Join(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DistributedDataParallel::Join::Join(Join&&) noexcept = default;

DistributedDataParallel::Join::~Join() {
  // What went wrong ends the group, and is what later calls say.
  if (impl_ != nullptr && std::uncaught_exceptions() == 0) (void)impl_->Finish(nullptr);
}

Status DistributedDataParallel::Join::Finish(const std::function<void()>& step) {
  return impl_->Finish(step);
}

DistributedDataParallel::Join DistributedDataParallel::join() {
  return Join(std::make_unique<Join::Impl>(impl_.get()));
}

Status DistributedDataParallel::StepWithoutGradients() {
  return ToStatus(impl_->StepWithoutGradients());
}

void DistributedDataParallel::set_learning_rate(double lr) {
  StepOptions steps = impl_->engine().next_steps();
  steps.lr = lr;
  impl_->engine().SetNextSteps(steps);
}

Status DistributedDataParallel::BroadcastBuffers() {
  return ToStatus(impl_->engine().BroadcastBuffers(impl_->deadline()));
}

std::string DistributedDataParallel::ParametersSha256() const {
  return impl_->engine().ParamsSha256();
}

}  // namespace gradsync
