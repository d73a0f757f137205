#include "allreduce/gloo_gradient_sync.h"

#ifdef USE_C10D_GLOO

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/c10d_store_adapter.h"
#include "allreduce/task_queue.h"
#include "base/deadline.h"
#include "base/kernels.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/flat_buckets.h"
#include "sync/launch_order.h"
#include "sync/membership.h"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace gradsync {
namespace {

// Runs what calls LibTorch, whose errors are exceptions.
absl::Status Guard(absl::string_view what, const std::function<void()>& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string line = text.substr(0, text.find('\n'));
    const bool timeout =
        absl::StrContains(line, "imed out") || absl::StrContains(line, "DEADLINE_EXCEEDED");
    return absl::Status(
        timeout ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
        absl::StrCat(what, ": ", line));
  }
}

class GlooGradientSync : public GradientSync {
 public:
  explicit GlooGradientSync(GlooOptions options);
  ~GlooGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return UpdateSite::kWorker; }
  SyncIdentity identity() const override { return {Backend::kRingOverGloo}; }
  absl::Status Settle(Deadline) override { return member_.CheckUsable(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::Status status() const override { return member_.status(); }
  void Abort(absl::Status reason) override { member_.Abort(std::move(reason)); }
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override { return {}; }

 private:
  absl::Status Connect(Deadline deadline);
  SyncHandle Queue(std::string what, std::function<absl::Status()> work);
  void RunNext(const std::function<absl::Status()>& work);
  absl::Status Allreduce(const StepOptions& step, int bucket);
  void Halt();
  void OnFailure(absl::Status status);

  const GlooOptions options_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  std::vector<GradBucket> buckets_;
  // Used by the task queue alone after Bind(); null with one rank, and after a failure.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;

  Mutex mutex_;
  bool halted_ ABSL_GUARDED_BY(mutex_) = false;  // nothing completes any more; OnFailure() follows
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<SyncPromise> pending_ ABSL_GUARDED_BY(mutex_);  // in the order of the queue

  TaskQueue tasks_;    // stopped by the destructor
  Membership member_;  // last: its threads use all of the above
};

GlooGradientSync::GlooGradientSync(GlooOptions options)
    : options_(std::move(options)),
      member_(
          options_.group, "gloo", [this] { Halt(); },
          [this](absl::Status status) { OnFailure(std::move(status)); }) {}

GlooGradientSync::~GlooGradientSync() {
  member_.Part();
  tasks_.Stop();
  Guard("closing Gloo", [this] { process_group_.reset(); }).IgnoreError();
}

absl::StatusOr<std::vector<GradBucket>> GlooGradientSync::Bind(const Plan& plan,
                                                               Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.BeginBind(plan, deadline));
  GS_RETURN_IF_ERROR(CheckUncompressed(plan.codec(), "Gloo adds what it sends, in fp32"));
  plan_ = plan;
  launch_order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  absl::StatusOr<std::vector<GradBucket>> buckets = AllocateBuckets(plan);
  absl::Status connected = buckets.status();
  if (connected.ok()) buckets_ = *std::move(buckets);
  if (connected.ok() && options_.group.world_size > 1) connected = Connect(deadline);
  if (connected.ok()) connected = member_.side_channel().Barrier(deadline);
  if (!connected.ok()) return member_.Failed(connected);
  member_.SetBound();
  return buckets_;
}

absl::Status GlooGradientSync::Connect(Deadline deadline) {
  const WorkerGroup& group = options_.group;
  return Guard(
      absl::StrCat("rank ", group.rank, " at ", group.address, " cannot connect with Gloo"), [&] {
        auto options = c10d::ProcessGroupGloo::Options::create(
            std::chrono::milliseconds(absl::ToInt64Milliseconds(group.timeout)));
        options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(group.address)};
        options->threads = 1;
        const auto store =
            c10::make_intrusive<C10dStoreAdapter>(group.store, group.Key("gloo/"), deadline);
        process_group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
            store, group.rank, group.world_size, std::move(options));
      });
}

SyncHandle GlooGradientSync::Queue(std::string what, std::function<absl::Status()> work) {
  const SyncPromise promise(std::move(what));
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return ResolvedHandle(failure_);
    pending_.push_back(promise);
    if (halted_) return promise.handle();
  }
  tasks_.Add([this, work = std::move(work)] { RunNext(work); });
  return promise.handle();
}

void GlooGradientSync::RunNext(const std::function<absl::Status()>& work) {
  {
    MutexLock lock(&mutex_);
    if (halted_) return;
  }
  const absl::Status status = work();
  if (!status.ok()) return member_.Report(status);
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    if (halted_) return;
    promise = pending_.front();
    pending_.pop_front();
  }
  promise->Resolve(absl::OkStatus());
}

absl::Status GlooGradientSync::Allreduce(const StepOptions& step, int bucket) {
  at::Tensor& grad = buckets_[bucket].grad;
  if (process_group_ != nullptr && grad.numel() > 0) {
    GS_RETURN_IF_ERROR(Guard(absl::StrCat("allreduce of bucket ", bucket, " of step ", step.step,
                                          " at rank ", options_.group.rank),
                             [&] {
                               std::vector<at::Tensor> tensors = {grad};
                               process_group_->allreduce(tensors)->wait();
                             }));
  }
  ScaleTwice(grad.data_ptr<float>(), grad.numel(),
             1.0f / static_cast<float>(options_.group.world_size),
             static_cast<float>(step.inverse_loss_scale));
  return absl::OkStatus();
}

SyncHandle GlooGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = member_.CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  const absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) member_.Report(order);
  SyncHandle handle = Queue(absl::StrCat("bucket ", bucket, " of step ", step.step),
                            [this, step, bucket] { return Allreduce(step, bucket); });
  return order.ok() ? launch_order_.Launched(std::move(handle)) : handle;
}

absl::Status GlooGradientSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  const SyncHandle handle = Queue("the broadcast of parameters", [this] {
    for (GradBucket& bucket : buckets_) {
      if (process_group_ == nullptr || bucket.param.numel() == 0) continue;
      GS_RETURN_IF_ERROR(Guard(absl::StrCat("broadcast at rank ", options_.group.rank), [&] {
        std::vector<at::Tensor> tensors = {bucket.param};
        process_group_->broadcast(tensors)->wait();
      }));
    }
    return absl::OkStatus();
  });
  absl::Status status = handle.Wait(deadline);
  if (status.ok()) status = member_.side_channel().Barrier(deadline);
  return status.ok() ? status : member_.Failed(status);
}

absl::StatusOr<OptimizerState> GlooGradientSync::ExportOptimizerState(Deadline) {
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  return OptimizerState();
}

absl::Status GlooGradientSync::ImportOptimizerState(const OptimizerState& state, Deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (member_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  return member_.CheckUsable();
}

void GlooGradientSync::Halt() {
  {
    MutexLock lock(&mutex_);
    halted_ = true;
  }
}

void GlooGradientSync::OnFailure(absl::Status status) {
  std::deque<SyncPromise> pending;
  {
    MutexLock lock(&mutex_);
    halted_ = true;
    failure_ = status;
    pending.swap(pending_);
  }
  for (const SyncPromise& promise : pending) promise.Resolve(status);
  // Closing is what interrupts the peers; it has to wait for the exchange that runs here.
  tasks_.Add([this] { Guard("closing Gloo", [this] { process_group_.reset(); }).IgnoreError(); });
}

absl::Status GlooGradientSync::Shutdown(Deadline deadline) {
  if (member_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(member_.Leave(deadline));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateGlooGradientSync(const GlooOptions& options) {
  if (options.update_site == UpdateSite::kOwner) {
    return absl::InvalidArgumentError(
        "gloo: expected the update at the workers, found it at the owners; Gloo's process group "
        "has no reduce-scatter");
  }
  GlooOptions complete = options;
  GS_ASSIGN_OR_RETURN(complete.group, CheckGroup(options.group, "gloo"));
  return std::unique_ptr<GradientSync>(std::make_unique<GlooGradientSync>(std::move(complete)));
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
