#include "allreduce/ring_gradient_sync.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allreduce/ring_engine.h"
#include "allreduce/ring_peers.h"
#include "allreduce/task_queue.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/flat_buckets.h"
#include "sync/launch_order.h"
#include "sync/membership.h"

namespace gradsync {
namespace {

class RingGradientSync : public GradientSync {
 public:
  explicit RingGradientSync(RingOptions options);
  ~RingGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  SyncIdentity identity() const override {
    return {Backend::kRingOverGrpc, Consistency(), options_.connections};
  }
  absl::Status Settle(Deadline) override { return member_.CheckUsable(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::Status status() const override { return member_.status(); }
  void Abort(absl::Status reason) override { member_.Abort(std::move(reason)); }
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override {
    return engine_ != nullptr ? engine_->wire_stats() : WireStats();
  }

 private:
  absl::Status AgreeOnOptions(Deadline deadline);
  absl::Status MakeRing(const Plan& plan, const std::vector<GradBucket>& buckets,
                        Deadline deadline);
  void Halt();
  void OnFailure(absl::Status status);

  const RingOptions options_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  int64_t steps_done_ = 0;  // of the optimizer, under kOwner

  // What OnFailure(), which runs on a thread of member_, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<RingEngine> engine_;  // written once by Bind(), under mutex_
  std::unique_ptr<RingPeers> peers_;    // the same; null with one rank

  TaskQueue tasks_;    // stopped by the destructor
  Membership member_;  // last: its threads use all of the above
};

RingGradientSync::RingGradientSync(RingOptions options)
    : options_(std::move(options)),
      member_(
          options_.group, "ring", [this] { Halt(); },
          [this](absl::Status status) { OnFailure(std::move(status)); }) {}

RingGradientSync::~RingGradientSync() {
  // Others learn why before they see connections end.
  member_.Part();
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
                                                               Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.BeginBind(plan, deadline));
  if (plan.codec().sparse()) {
    return absl::InvalidArgumentError(
        absl::StrCat("compression: expected none, fp16 or bf16 for a ring, found ",
                     CodecName(plan.codec()), "; sums of sparse gradients grow at each hop"));
  }
  GS_RETURN_IF_ERROR(AgreeOnOptions(deadline));
  plan_ = plan;
  launch_order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  absl::StatusOr<std::vector<GradBucket>> buckets = AllocateBuckets(plan);
  const absl::Status made = buckets.ok() ? MakeRing(plan, *buckets, deadline) : buckets.status();
  if (!made.ok()) return member_.Failed(made);
  member_.SetBound();
  return buckets;
}

absl::Status RingGradientSync::AgreeOnOptions(Deadline deadline) {
  const std::string mine =
      absl::StrCat("update site ", options_.update_site == UpdateSite::kOwner ? "owner" : "worker",
                   ", ", options_.connections, " connections, window ", options_.window);
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      member_.side_channel().AllGather(mine, deadline));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat("ring options differ: rank 0 has ", all[0],
                                                      "; rank ", rank, " has ", all[rank]));
  }
  return absl::OkStatus();
}

absl::Status RingGradientSync::MakeRing(const Plan& plan, const std::vector<GradBucket>& buckets,
                                        Deadline deadline) {
  RingEngineOptions engine;
  engine.plan = plan;
  engine.rank = options_.group.rank;
  engine.update_site = options_.update_site;
  engine.connections = options_.connections;
  engine.window = options_.window;
  engine.buckets = buckets;
  engine.defer = [this](TaskQueue::Task task) { tasks_.Add(std::move(task)); };
  engine.report = [this](absl::Status status) { member_.Report(std::move(status)); };
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
    options.on_error = [this](absl::Status status) { member_.Report(std::move(status)); };
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
  return member_.side_channel().Barrier(deadline);
}

absl::Status RingGradientSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  if (options_.group.world_size == 1) return absl::OkStatus();
  RingBroadcast& broadcast = engine_->broadcast();
  const SyncHandle handle = broadcast.Begin();
  // No parameter is overwritten before its rank said so by coming here.
  absl::Status status = member_.side_channel().Barrier(deadline);
  if (status.ok() && options_.group.rank == 0) broadcast.SendAll();
  if (status.ok()) status = handle.Wait(deadline);
  if (status.ok()) status = member_.side_channel().Barrier(deadline);
  return status.ok() ? status : member_.Failed(status);
}

SyncHandle RingGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = member_.CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  const absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) return engine_->Refuse(order);
  steps_done_ = step.step;
  return launch_order_.Launched(engine_->Launch(step, bucket));
}

absl::StatusOr<OptimizerState> RingGradientSync::ExportOptimizerState(Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return OptimizerState();
  absl::StatusOr<OptimizerState> state =
      engine_->owner().Export(steps_done_, member_.side_channel(), deadline);
  if (!state.ok()) return member_.Failed(state.status());
  return state;
}

absl::Status RingGradientSync::ImportOptimizerState(const OptimizerState& state, Deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (member_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return absl::OkStatus();
  engine_->owner().Import(state);
  steps_done_ = state.step;
  return absl::OkStatus();
}

void RingGradientSync::Halt() {
  std::shared_ptr<RingEngine> engine;
  {
    MutexLock lock(&mutex_);
    engine = engine_;
  }
  if (engine != nullptr) engine->Halt();
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
}

absl::Status RingGradientSync::Shutdown(Deadline deadline) {
  if (member_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(member_.Leave(deadline));
  return peers_ != nullptr ? peers_->Finish(deadline) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRingGradientSync(const RingOptions& options) {
  RingOptions complete = options;
  GS_ASSIGN_OR_RETURN(complete.group, CheckGroup(options.group, "ring"));
  if (options.connections < 1 || options.window < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ring: expected at least 1 connection and a window of at least 1, found ",
                     options.connections, " and ", options.window));
  }
  if (options.group.world_size > 1 && options.link == nullptr) {
    return absl::InvalidArgumentError("ring: expected a link with more than one rank");
  }
  return std::unique_ptr<GradientSync>(std::make_unique<RingGradientSync>(std::move(complete)));
}

}  // namespace gradsync
