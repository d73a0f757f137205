#include "gradsync/ddp.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gradsync/group_impl.h"
#include "gradsync/join/torch_adapters.h"
#include "torch/csrc/autograd/engine.h"

namespace gradsync {
namespace {

// Whoever links this file links LibTorch.
[[maybe_unused]] const bool kAdapters = SetAdapters(TorchAdapters);

}  // namespace

// A step is a backward outside of NoSync().
class DistributedDataParallel::Impl {
 public:
  explicit Impl(Group::Impl* group) : group_(group) {}

  absl::Status Bind(std::shared_ptr<torch::nn::Module> module, const DdpOptions& options) {
    DdpEngineOptions engine;
    engine.optimizer.groups.emplace_back();
    engine.updates = false;
    engine.plan.bucket_bytes = options.bucket_bytes;
    engine.plan.first_bucket_bytes = options.first_bucket_bytes;
    engine.forward_backward = options.forward_backward;
    engine.on_backward = [this] { AwaitEndOfBackward(); };
    engine.activity = group_->member().activity().get();
    engine.timeout = group_->timeout();
    GS_RETURN_IF_ERROR(group_->TakeSync());
    GS_ASSIGN_OR_RETURN(engine_,
                        DdpEngine::Create(std::move(module), &group_->sync(),
                                          &group_->member().side_channel(), std::move(engine)));
    broadcast_buffers_ = options.broadcast_buffers;
    return absl::OkStatus();
  }

  // On the thread of a backward that has reached the first of the module's parameters.
  void AwaitEndOfBackward() {
    group_->SetInStep(true);
    torch::autograd::Engine::get_default_engine().queue_callback([this] {
      absl::Status ended = engine_->FinishStep(group_->deadline());
      if (ended.ok() && broadcast_buffers_) ended = engine_->BroadcastBuffers(group_->deadline());
      ToStatus(ended).OrThrow();
      group_->SetInStep(false);
    });
  }

  DdpEngine& engine() const { return *engine_; }
  Deadline deadline() const { return group_->deadline(); }

 private:
  Group::Impl* const group_;
  bool broadcast_buffers_ = false;
  std::unique_ptr<DdpEngine> engine_;
};

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

Status DistributedDataParallel::BroadcastBuffers() {
  return ToStatus(impl_->engine().BroadcastBuffers(impl_->deadline()));
}

std::string DistributedDataParallel::ParametersSha256() const {
  return impl_->engine().ParamsSha256();
}

}  // namespace gradsync
