#include "allreduce/ring_gradient_sync.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "allreduce/collect_state.h"
#include "allreduce/ring_engine.h"
#include "allreduce/ring_peers.h"
#include "allreduce/task_queue.h"
#include "base/status_macros.h"
#include "links/in_memory_store.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/agree_on_plan.h"
#include "sync/flat_buckets.h"
#include "sync/group_error.h"
#include "sync/launch_order.h"
#include "sync/side_channel.h"

namespace gradsync {
namespace {

// How long the destructor waits for its farewell to be published; GroupError's own limit is
// shorter.
constexpr absl::Duration kFarewell = absl::Seconds(5);

class RingGradientSync : public GradientSync {
 public:
  explicit RingGradientSync(RingOptions options);
  ~RingGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, absl::Time deadline) override;
  absl::Status BroadcastParameters(absl::Time deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  absl::StatusOr<OptimizerState> ExportOptimizerState(absl::Time deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, absl::Time deadline) override;
  absl::Status status() const override { return group_error_.status(); }
  void Abort(absl::Status reason) override;
  absl::Status Shutdown(absl::Time deadline) override;
  WireStats wire_stats() const override {
    return engine_ != nullptr ? engine_->wire_stats() : WireStats();
  }

 private:
  absl::Status AgreeOnOptions(absl::Time deadline);
  absl::Status MakeRing(const Plan& plan, const std::vector<GradBucket>& buckets,
                        absl::Time deadline);
  absl::Status CheckUsable() const;
  absl::Status Failed(absl::Status status);
  void Report(absl::Status status);
  void OnFailure(absl::Status status);

  const RingOptions options_;
  SideChannel side_channel_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  int64_t steps_done_ = 0;  // of the optimizer, under kOwner
  bool bound_ = false;      // Bind() was called and succeeded
  bool bind_called_ = false;
  bool left_ = false;

  // What OnFailure(), which runs on a thread of group_error_, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  const SyncPromise failed_;            // resolved when OnFailure() is done
  std::shared_ptr<RingEngine> engine_;  // written once by Bind(), under mutex_
  std::unique_ptr<RingPeers> peers_;    // the same; null with one rank

  GroupError group_error_;
  TaskQueue tasks_;  // last: its thread uses all of the above
};

RingGradientSync::RingGradientSync(RingOptions options)
    : options_(std::move(options)),
      side_channel_(options_.group, "ring"),
      failed_("the group's failure"),
      group_error_(options_.group, [this](absl::Status status) { OnFailure(std::move(status)); }) {}

RingGradientSync::~RingGradientSync() {
  if (!left_) {
    group_error_.Report(
        absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " left without Shutdown")));
    // Others learn why before they see streams end; the failure cancels the streams.
    failed_.handle().Wait(absl::Now() + kFarewell).IgnoreError();
  }
  std::unique_ptr<RingPeers> peers;
  {
    MutexLock lock(&mutex_);
    peers = std::move(peers_);
  }
  if (peers != nullptr) peers->Cancel(absl::CancelledError("destroyed"));
  tasks_.Stop();
  peers.reset();
}

absl::StatusOr<std::vector<GradBucket>> RingGradientSync::Bind(const Plan& plan,
                                                               absl::Time deadline) {
  GS_RETURN_IF_ERROR(status());
  if (bind_called_) return absl::FailedPreconditionError("Bind: expected one call, found a second");
  bind_called_ = true;
  const WorkerGroup& group = options_.group;
  if (plan.world_size() != group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan.world_size(),
                                                   " ranks, expected one for ", group.world_size));
  }
  GS_RETURN_IF_ERROR(AgreeOnPlan(side_channel_, plan, deadline));
  if (plan.codec().sparse()) {
    return absl::InvalidArgumentError(
        absl::StrCat("compression: expected none, fp16 or bf16 for a ring, found ",
                     CodecName(plan.codec()), "; sums of sparse gradients grow at each hop"));
  }
  GS_RETURN_IF_ERROR(AgreeOnOptions(deadline));
  plan_ = plan;
  launch_order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  std::vector<GradBucket> buckets = AllocateBuckets(plan);
  const absl::Status made = MakeRing(plan, buckets, deadline);
  if (!made.ok()) return Failed(made);
  bound_ = true;
  return buckets;
}

absl::Status RingGradientSync::AgreeOnOptions(absl::Time deadline) {
  const std::string mine =
      absl::StrCat("update site ", options_.update_site == UpdateSite::kOwner ? "owner" : "worker",
                   ", ", options_.connections, " connections, window ", options_.window);
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel_.AllGather(mine, deadline));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat("ring options differ: rank 0 has ", all[0],
                                                      "; rank ", rank, " has ", all[rank]));
  }
  return absl::OkStatus();
}

absl::Status RingGradientSync::MakeRing(const Plan& plan, const std::vector<GradBucket>& buckets,
                                        absl::Time deadline) {
  RingEngineOptions engine;
  engine.plan = plan;
  engine.rank = options_.group.rank;
  engine.update_site = options_.update_site;
  engine.connections = options_.connections;
  engine.window = options_.window;
  engine.buckets = buckets;
  engine.defer = [this](TaskQueue::Task task) { tasks_.Add(std::move(task)); };
  engine.report = [this](absl::Status status) { Report(std::move(status)); };
  std::unique_ptr<RingPeers> peers;
  if (options_.group.world_size > 1) {
    RingPeersOptions options;
    options.group = options_.group;
    options.link = options_.link;
    options.connections = options_.connections;
    options.fingerprint = plan.fingerprint();
    options.on_frame = [this](const proto::FrameHeader& header, Payload payload) {
      return engine_->OnFrame(header, std::move(payload));
    };
    options.on_error = [this](absl::Status status) { Report(std::move(status)); };
    peers = std::make_unique<RingPeers>(std::move(options));
    engine.send = [peers = peers.get()](int connection, OutgoingFrame frame) {
      peers->Send(connection, std::move(frame));
    };
  }
  {
    MutexLock lock(&mutex_);
    engine_ = std::make_shared<RingEngine>(std::move(engine));
    peers_ = std::move(peers);
    if (!failure_.ok()) return failure_;
  }
  if (peers_ != nullptr) GS_RETURN_IF_ERROR(peers_->Connect(deadline));
  // Nobody launches before everybody is connected.
  return side_channel_.Barrier(deadline);
}

absl::Status RingGradientSync::CheckUsable() const {
  GS_RETURN_IF_ERROR(status());
  if (left_)
    return absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " was shut down"));
  if (!bound_) return absl::FailedPreconditionError("expected a successful Bind() first");
  return absl::OkStatus();
}

// What a collective call failed with, or the group's failure when there is one; from now on the
// group has failed.
absl::Status RingGradientSync::Failed(absl::Status status) {
  Report(status);
  failed_.handle().Wait(absl::Now() + kFarewell).IgnoreError();
  const absl::Status group = group_error_.status();
  return group.ok() ? status : group;
}

absl::Status RingGradientSync::BroadcastParameters(absl::Time deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.group.world_size == 1) return absl::OkStatus();
  RingBroadcast& broadcast = engine_->broadcast();
  const SyncHandle handle = broadcast.Begin();
  // No parameter is overwritten before its rank said so by coming here.
  absl::Status status = side_channel_.Barrier(deadline);
  if (status.ok() && options_.group.rank == 0) broadcast.SendAll();
  if (status.ok()) status = handle.Wait(deadline);
  if (status.ok()) status = side_channel_.Barrier(deadline);
  return status.ok() ? status : Failed(status);
}

SyncHandle RingGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  const absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) return engine_->Refuse(order);
  steps_done_ = step.step;
  return engine_->Launch(step, bucket);
}

absl::StatusOr<OptimizerState> RingGradientSync::ExportOptimizerState(absl::Time deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return OptimizerState();
  absl::StatusOr<OptimizerState> state =
      CollectState(plan_, engine_->owner(), steps_done_, side_channel_, deadline);
  if (!state.ok()) return Failed(state.status());
  return state;
}

absl::Status RingGradientSync::ImportOptimizerState(const OptimizerState& state, absl::Time) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (bound_) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return absl::OkStatus();
  engine_->owner().Import(state);
  steps_done_ = state.step;
  return absl::OkStatus();
}

void RingGradientSync::Abort(absl::Status reason) {
  if (reason.ok())
    reason = absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " aborted"));
  Report(std::move(reason));
}

void RingGradientSync::Report(absl::Status status) {
  std::shared_ptr<RingEngine> engine;
  {
    MutexLock lock(&mutex_);
    engine = engine_;
  }
  if (engine != nullptr) engine->Halt();
  group_error_.Report(std::move(status));
}

void RingGradientSync::OnFailure(absl::Status status) {
  std::shared_ptr<RingEngine> engine;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    engine = engine_;
    if (peers_ != nullptr) peers_->Cancel(status);
  }
  if (engine != nullptr) engine->Fail(status);
  failed_.Resolve(std::move(status));
}

absl::Status RingGradientSync::Shutdown(absl::Time deadline) {
  GS_RETURN_IF_ERROR(status());
  if (left_) return absl::OkStatus();
  if (!bound_) return absl::FailedPreconditionError("Shutdown: expected a successful Bind() first");
  const absl::Status all_here = side_channel_.Barrier(deadline);
  if (!all_here.ok()) return Failed(all_here);
  group_error_.Leave();
  left_ = true;
  return peers_ != nullptr ? peers_->Finish(deadline) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRingGradientSync(const RingOptions& options) {
  const WorkerGroup& group = options.group;
  if (group.world_size < 1 || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank: expected 0..world_size-1, found ",
                                                   group.rank, " of ", group.world_size));
  }
  if (options.connections < 1 || options.window < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ring: expected at least 1 connection and a window of at least 1, found ",
                     options.connections, " and ", options.window));
  }
  if (group.world_size > 1 && (options.link == nullptr || group.store == nullptr)) {
    return absl::InvalidArgumentError("ring: expected a link and a store with more than one rank");
  }
  RingOptions complete = options;
  if (complete.group.store == nullptr) complete.group.store = NewInMemoryStore();
  return std::unique_ptr<GradientSync>(std::make_unique<RingGradientSync>(std::move(complete)));
}

}  // namespace gradsync
