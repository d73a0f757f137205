#include "allreduce/ring_gradient_sync.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "allreduce/ring_engine.h"
#include "allreduce/ring_tokens.h"
#include "allreduce/work_queue.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/links/peer_session.h"
#include "core/plan/codec.h"
#include "core/plan/ring_schedule.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"
#include "proto/frame.pb.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

// Of a rank's peers: the one whose streams it hears, and the one to which it sends.
enum Peer { kPrevious, kNext };

class RingSync : public SyncEngine {
 public:
  RingSync(EngineHost& host, RingOptions options)
      : SyncEngine(host), options_(std::move(options)) {}

  SyncIdentity identity() const override {
    return {options_.backend, Consistency(), options_.connections};
  }
  UpdateSite update_site() const override { return options_.update_site; }
  std::string Terms() const override {
    return absl::StrCat(options_.connections, " connections, lead ", options_.lead);
  }

  absl::Status CheckPlan(const Plan& plan) const override;
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override {
    return engine_->Launch(step, bucket);
  }
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  bool keeps_parameters() const override { return true; }
  absl::StatusOr<SyncHandle> Gather(int bucket) override {
    return engine_->gather()->Gather(bucket);
  }
  absl::Status StoreParameters(int bucket, Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) override {
    return engine_->owner().Export(steps, side_channel(), deadline);
  }
  absl::Status Import(const OptimizerState& state, Deadline) override {
    engine_->owner().Import(state);
    return absl::OkStatus();
  }
  WireStats wire_stats() const override { return engine_->wire_stats(); }

  void Halt(const absl::Status& why) override;
  void Fail(const absl::Status& status) override;
  absl::Status Leave(Deadline deadline) override {
    return peers_ != nullptr ? peers_->Finish(deadline) : absl::OkStatus();
  }
  void Close() override;

 private:
  RingEngineOptions EngineOptions(const Plan& plan, const std::vector<GradBucket>& buckets);
  PeerSessionOptions PeersOptions();
  absl::Status OnFrame(Peer from, const FrameHeader& header, Payload payload);
  std::shared_ptr<RingEngine> EngineToEnd();

  const RingOptions options_;

  // What a failure, on another thread, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<RingEngine> engine_;  // written once by Connect(), under mutex_
  std::unique_ptr<PeerSession> peers_;  // the same; null with one rank
  std::atomic<bool> connected_{false};  // to all of them

  TaskQueue tasks_;  // last: its thread uses all of the above
};

absl::Status RingSync::CheckPlan(const Plan& plan) const {
  if (!plan.codec().sparse()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("compression: expected none, fp16 or bf16 for a ring, found ",
                   CodecName(plan.codec()), "; sums of sparse gradients grow at each hop"));
}

RingEngineOptions RingSync::EngineOptions(const Plan& plan,
                                          const std::vector<GradBucket>& buckets) {
  RingEngineOptions engine;
  engine.plan = plan;
  engine.rank = rank();
  engine.update_site = options_.update_site;
  engine.connections = options_.connections;
  engine.lead = options_.lead;
  engine.buckets = buckets;
  engine.recorder = host().worker().recorder;
  engine.defer = [this](TaskQueue::Task task) { tasks_.Add(std::move(task)); };
  engine.report = [this](absl::Status status) { host().Report(std::move(status)); };
  return engine;
}

PeerSessionOptions RingSync::PeersOptions() {
  PeerSessionOptions peers;
  peers.group = host().worker();
  peers.link = options_.link;
  peers.peers = {{RingPrevious(rank(), world_size()), /*opens=*/true},
                 {RingNext(rank(), world_size()), /*opens=*/false}};
  peers.connections = options_.connections;
  peers.kind = "ring";
  peers.agreement = "plan";
  peers.on_frame = [this](int from, const FrameHeader& header, Payload payload) {
    return OnFrame(static_cast<Peer>(from), header, std::move(payload));
  };
  peers.on_error = [this](absl::Status status) { host().Report(std::move(status)); };
  return peers;
}

absl::Status RingSync::OnFrame(Peer from, const FrameHeader& header, Payload payload) {
  if (from == kNext) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": expected nothing from the next rank"));
  }
  if (!connected_) {
    return absl::FailedPreconditionError(
        absl::StrCat(DescribeFrame(header), ": expected nothing before all ranks are connected"));
  }
  return engine_->OnFrame(header, std::move(payload));
}

absl::StatusOr<std::vector<GradBucket>> RingSync::Connect(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets, AllocateBuckets(plan));
  RingEngineOptions engine = EngineOptions(plan, buckets);
  std::unique_ptr<PeerSession> peers;
  if (world_size() > 1) {
    peers = std::make_unique<PeerSession>(PeersOptions());
    engine.driver = options_.link->driver();
    engine.send = [peers = peers.get()](int connection, OutgoingFrame frame) {
      peers->Send(kNext, connection, std::move(frame));
    };
  }
  {
    MutexLock lock(&mutex_);
    engine_ = std::make_shared<RingEngine>(std::move(engine));
    peers_ = std::move(peers);
    if (!failure_.ok()) return failure_;
  }
  if (peers_ != nullptr) GS_RETURN_IF_ERROR(peers_->Connect(plan.fingerprint(), deadline));
  connected_ = true;
  return buckets;
}

absl::Status RingSync::Broadcast(int64_t, Deadline deadline) {
  if (world_size() == 1) return absl::OkStatus();
  RingBroadcast& broadcast = engine_->broadcast();
  const SyncHandle handle = broadcast.Begin();
  // No parameter is overwritten before its rank said so by coming here.
  GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
  if (rank() == 0) broadcast.SendAll();
  GS_RETURN_IF_ERROR(handle.Wait(deadline));
  return side_channel().Barrier(deadline);
}

absl::Status RingSync::StoreParameters(int bucket, Deadline deadline) {
  if (world_size() > 1) {
    RingBroadcast& broadcast = engine_->broadcast();
    const SyncHandle handle = broadcast.BeginBucket(bucket);
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    if (rank() == 0) broadcast.SendAll();
    GS_RETURN_IF_ERROR(handle.Wait(deadline));
  }
  engine_->gather()->Store(bucket);
  return world_size() > 1 ? side_channel().Barrier(deadline) : absl::OkStatus();
}

std::shared_ptr<RingEngine> RingSync::EngineToEnd() {
  MutexLock lock(&mutex_);
  return engine_;
}

void RingSync::Halt(const absl::Status&) {
  if (const std::shared_ptr<RingEngine> engine = EngineToEnd()) engine->Halt();
}

void RingSync::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    if (peers_ != nullptr) peers_->Cancel(status);
  }
  if (const std::shared_ptr<RingEngine> engine = EngineToEnd()) engine->Fail(status);
}

void RingSync::Close() {
  std::unique_ptr<PeerSession> peers;
  {
    MutexLock lock(&mutex_);
    peers = std::move(peers_);
  }
  if (peers != nullptr) peers->Cancel(absl::CancelledError("destroyed"));
  tasks_.Stop();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRingGradientSync(const RingOptions& options) {
  if (options.connections < 1 || options.lead < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ring: expected at least 1 connection and a lead of at least 1, found ",
                     options.connections, " and ", options.lead));
  }
  if (options.group.world_size > 1 && options.link == nullptr) {
    return absl::InvalidArgumentError("ring: expected a link with more than one rank");
  }
  return NewGroupSync(options.group, "ring",
                      [&](EngineHost& host) { return std::make_unique<RingSync>(host, options); });
}

}  // namespace gradsync
