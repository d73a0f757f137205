// An adapter: each bucket is one all-reduce of LibTorch's ProcessGroupGloo, in the order of their
// indices. The algorithm is Gloo's, and so is the order in which it adds; what is ours is who is
// to blame when it fails.

#include "allreduce/gloo_gradient_sync.h"

#ifdef USE_C10D_GLOO

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/c10d_store_adapter.h"
#include "allreduce/interruptible_gloo.h"
#include "allreduce/work_queue.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/kernels.h"
#include "core/base/mutex.h"
#include "core/base/no_sigpipe.h"
#include "core/base/status_macros.h"
#include "core/group/heartbeat.h"
#include "core/plan/codec.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace gradsync {
namespace {

// Runs what calls LibTorch, whose errors are exceptions. Gloo writes to sockets that a peer may have
// closed, in this thread and in those that it starts here.
absl::Status Guard(absl::string_view what, const std::function<void()>& call) {
  const NoSigpipe no_sigpipe;
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string line = text.substr(0, text.find('\n'));
    const bool timeout = absl::StrContains(line, "imed out") ||
                         absl::StrContains(line, "Connect timeout") ||
                         absl::StrContains(line, "DEADLINE_EXCEEDED");
    return absl::Status(
        timeout ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
        absl::StrCat(what, ": ", line));
  }
}

at::Tensor HostTensor(const FlatBuffer& buffer) {
  return at::from_blob(
      buffer.floats(), {buffer.numel}, [memory = buffer.memory](void*) {}, at::kFloat);
}

// Of what waits for peers: it sees that a connection ended, but not whose, nor why. Others may know.
absl::Status GuardWithPeers(const WorkerGroup& group, absl::string_view what,
                            const std::function<void()>& call) {
  const absl::Status status = Guard(what, call);
  if (!absl::IsUnavailable(status)) return status;
  // One that gave up waiting closes all of its connections, before the watchdog has judged.
  return Suspicion(status, std::max(kUntilTheGroupKnows, JudgePatience(group.failure_timeout)));
}

// Gloo waits for the address of a peer when it has made its own end of all pairs.
class GlooStore : public C10dStoreAdapter {
 public:
  GlooStore(const WorkerGroup& group, Deadline deadline,
            std::shared_ptr<InterruptibleDevice> device)
      : C10dStoreAdapter(group.store, group.Key("gloo/"), deadline), device_(std::move(device)) {}

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    device_->BeginToConnect();
    C10dStoreAdapter::wait(keys, timeout);
  }

 private:
  const std::shared_ptr<InterruptibleDevice> device_;
};

class GlooSync : public SyncEngine {
 public:
  explicit GlooSync(EngineHost& host)
      : SyncEngine(host),
        queue_([this](absl::Status status) { this->host().Report(std::move(status)); }) {}

  SyncIdentity identity() const override { return {Backend::kRingOverGloo}; }
  UpdateSite update_site() const override { return UpdateSite::kWorker; }
  std::string Terms() const override { return ""; }

  absl::Status CheckPlan(const Plan& plan) const override {
    return CheckUncompressed(plan.codec(), "Gloo adds what it sends, in fp32");
  }
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override {
    return queue_.Add(absl::StrCat("bucket ", bucket, " of step ", step.step),
                      [this, step, bucket] { return Allreduce(step, bucket); });
  }
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t, Deadline) override { return OptimizerState(); }
  absl::Status Import(const OptimizerState&, Deadline) override { return absl::OkStatus(); }
  WireStats wire_stats() const override { return {}; }

  void Halt(const absl::Status&) override { queue_.Halt(); }
  void Fail(const absl::Status& status) override {
    queue_.Fail(status);
    Interrupt();
  }
  void Close() override {
    queue_.Stop();
    Guard("closing Gloo", [this] { process_group_.reset(); }).IgnoreError();
  }

 private:
  absl::Status ConnectGloo(Deadline deadline);
  absl::Status Allreduce(const StepOptions& step, int bucket);
  absl::Status BroadcastBuckets();
  void Interrupt();
  std::string OwnName() const { return host().worker().Name(rank()); }

  std::vector<GradBucket> buckets_;
  Mutex mutex_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<InterruptibleDevice> device_ ABSL_GUARDED_BY(mutex_);  // null until it connects
  // Used by the queue alone between Connect() and Close(); null with one rank.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  WorkQueue queue_;  // last: its thread uses all of the above
};

absl::StatusOr<std::vector<GradBucket>> GlooSync::Connect(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(buckets_, AllocateBuckets(plan));
  if (world_size() > 1) GS_RETURN_IF_ERROR(ConnectGloo(deadline));
  return buckets_;
}

absl::Status GlooSync::ConnectGloo(Deadline deadline) {
  const WorkerGroup& group = host().worker();
  std::shared_ptr<InterruptibleDevice> device;
  GS_RETURN_IF_ERROR(
      Guard(absl::StrCat(OwnName(), " at ", group.address, " cannot listen with Gloo"), [&] {
        device = std::make_shared<InterruptibleDevice>(
            c10d::ProcessGroupGloo::createDeviceForHostname(group.address));
      }));
  {
    MutexLock lock(&mutex_);
    if (interrupted_) return absl::CancelledError("the group has failed");
    device_ = device;
  }
  return GuardWithPeers(
      group, absl::StrCat("connecting with Gloo, ", OwnName(), " at ", group.address), [&] {
        auto options = c10d::ProcessGroupGloo::Options::create(
            std::chrono::milliseconds(absl::ToInt64Milliseconds(group.timeout)));
        options->devices = {device};
        options->threads = 1;
        process_group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
            c10::make_intrusive<GlooStore>(group, deadline, device), group.rank, group.world_size,
            std::move(options));
      });
}

// From any thread, once and for all.
void GlooSync::Interrupt() {
  std::shared_ptr<InterruptibleDevice> device;
  {
    MutexLock lock(&mutex_);
    interrupted_ = true;
    device = device_;
  }
  if (device == nullptr) return;
  Guard("interrupting Gloo", [&] { device->Interrupt(); }).IgnoreError();
}

absl::Status GlooSync::Allreduce(const StepOptions& step, int bucket) {
  const FlatBuffer& grad = buckets_[bucket].grad;
  if (process_group_ != nullptr && grad.numel > 0) {
    GS_RETURN_IF_ERROR(GuardWithPeers(
        host().worker(),
        absl::StrCat("allreduce of bucket ", bucket, " of step ", step.step, " at ", OwnName()),
        [&] {
          std::vector<at::Tensor> tensors = {HostTensor(grad)};
          process_group_->allreduce(tensors)->wait();
        }));
  }
  ScaleTwice(grad.floats(), grad.numel, 1.0f / static_cast<float>(world_size()),
             static_cast<float>(step.inverse_loss_scale));
  return absl::OkStatus();
}

absl::Status GlooSync::Broadcast(int64_t, Deadline deadline) {
  const SyncHandle handle =
      queue_.Add("the broadcast of parameters", [this] { return BroadcastBuckets(); });
  GS_RETURN_IF_ERROR(handle.Wait(deadline));
  return side_channel().Barrier(deadline);
}

absl::Status GlooSync::BroadcastBuckets() {
  for (const GradBucket& bucket : buckets_) {
    if (process_group_ == nullptr || bucket.param.numel == 0) continue;
    GS_RETURN_IF_ERROR(
        GuardWithPeers(host().worker(), absl::StrCat("broadcast at ", OwnName()), [&] {
          std::vector<at::Tensor> tensors = {HostTensor(bucket.param)};
          process_group_->broadcast(tensors)->wait();
        }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateGlooGradientSync(const GlooOptions& options) {
  if (options.update_site == UpdateSite::kOwner) {
    return absl::InvalidArgumentError(
        "gloo: expected the update at the workers, found it at the owners; Gloo's process group "
        "has no reduce-scatter");
  }
  return NewGroupSync(options.group, "gloo",
                      [](EngineHost& host) { return std::make_unique<GlooSync>(host); });
}

}  // namespace gradsync

#else  // USE_C10D_GLOO

namespace gradsync {

absl::StatusOr<std::unique_ptr<GradientSync>> CreateGlooGradientSync(const GlooOptions&) {
  return absl::InvalidArgumentError(
      "gloo: this build's LibTorch has no headers of Gloo; build with Debian's LibTorch (LIBTORCH "
      "unset), or use gRPC");
}

}  // namespace gradsync

#endif  // USE_C10D_GLOO
