#ifndef GRADSYNC_ALLREDUCE_RING_ENGINE_H_
#define GRADSYNC_ALLREDUCE_RING_ENGINE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allreduce/ring_broadcast.h"
#include "allreduce/ring_gather.h"
#include "allreduce/ring_norm.h"
#include "allreduce/ring_owner.h"
#include "allreduce/ring_tokens.h"
#include "allreduce/work_queue.h"
#include "core/base/mutex.h"
#include "core/base/trace_recorder.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/links/frame_stream.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/sync/chunk_encoder.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct RingEngineOptions {
  Plan plan;
  int rank = 0;
  UpdateSite update_site = UpdateSite::kWorker;
  int connections = 4;
  int lead = 8;
  std::vector<GradBucket> buckets;
  std::shared_ptr<TraceRecorder> recorder;  // of some steps; may be null

  // Gives a frame to a connection to the next rank. Must not block.
  RingWire::Send send;
  // Of the link: threads that wait are lent to it. Where there is one, a launch begins the exchange
  // itself, for sending costs little (StreamLink::driver()).
  std::weak_ptr<SyncDriver> driver;
  // Runs a task later on a thread of its own, one after another. Must not block. No task runs when
  // the engine is gone.
  std::function<void(TaskQueue::Task)> defer;
  // Something went wrong that OnFrame() cannot return. Must not block; Fail() follows.
  std::function<void(absl::Status)> report;
};

// One rank's part in the ring, without threads and connections: frames and launches come in, frames
// go out through `send`, and handles resolve. The algorithm is described in
// core/plan/ring_schedule.h, the rules of flow in ring_tokens.h.
//
// Thread-safe. Sums are added on the thread that brings the frame, several at a time; what a launch
// asks for is deferred. Held by shared_ptr: frames on their way keep it and the buckets' memory.
//
// When a step clips (max_norm > 0, kOwner), owners keep their finished means, tell the initiator of
// each with a CREDIT frame, so that others may begin more, and send their sums of squares round the ring
// in a SQUARES frame. Every owner computes the same norm, then updates and starts GATHER.
//
// Where owners alone keep the parameters (BucketSlots::parameters), a finished chunk stays with its
// owner, who tells the initiator by a CREDIT frame; for all others a token is over when they have
// passed the sum on. Parameters come by gather().
class RingEngine : public std::enable_shared_from_this<RingEngine> {
 public:
  explicit RingEngine(RingEngineOptions options);

  // As GradientSync::Launch(); the caller has checked the order.
  SyncHandle Launch(const StepOptions& step, int bucket);

  // A frame from the previous rank. Errors: INVALID_ARGUMENT or FAILED_PRECONDITION for one that
  // cannot come now, with what was expected; the caller reports it.
  absl::Status OnFrame(const proto::FrameHeader& header, Payload payload);

  // Nothing completes from here on: handles, those of later launches too, wait for Fail(), which
  // must follow. So that after a failure was seen here nothing succeeds any more, while the group
  // is asked for its first error.
  void Halt();

  // Ends everything: open handles, and all later ones, resolve with `status`, which is not OK. The
  // first call counts.
  void Fail(absl::Status status);

  RingBroadcast& broadcast() { return *broadcast_; }
  RingGather* gather() { return gather_.get(); }  // null unless owners alone keep parameters
  RingOwner& owner() { return owner_; }           // only while nothing is launched
  WireStats wire_stats() const { return wire_->stats(); }

 private:
  // A chunk that is lent to a connection, as a sum or as a result, and what the loan keeps alive.
  // One of each per chunk, used again in every step, so that sending allocates nothing.
  struct Loan {
    RingEngine* engine = nullptr;
    ChunkId id;
    bool final = false;
    std::shared_ptr<RingEngine> keep;  // while it is lent
  };

  SyncHandle Refuse(absl::Status error);
  void Begin(int bucket);
  void FoldDue(int bucket);
  Release LendTo(ChunkId id, bool final);
  static void LoanOver(void* loan);
  void InitiateOwn(int most);
  void Fold(const StepOptions& step, ChunkId id, Payload payload);
  void Update(const StepOptions& step, ChunkId id);
  void CopyFinal(const StepOptions& step, ChunkId id, Payload payload);
  void CopyDelayedFinal(ChunkId id);
  void SendSum(const StepOptions& step, ChunkId id, int hop);
  void SumReturned(ChunkId id);
  void PassOnMean(const StepOptions& step, ChunkId id);
  void PassOnFinal(const StepOptions& step, ChunkId id);
  void EndToken(ChunkId id);
  void FinalReturned(ChunkId id);
  void ResolveIfComplete(int bucket);

  absl::Status OnReduce(const proto::FrameHeader& header, Payload payload);
  absl::Status OnGather(const proto::FrameHeader& header, Payload payload);
  absl::Status OnCredit(const proto::FrameHeader& header);
  absl::Status OnSquares(const proto::FrameHeader& header, const Payload& payload);
  void SendSquaresIfDue();
  void ClipIfDue();
  void UpdateClipped(const StepOptions& step, double scale);

  bool clips(const StepOptions& step) const {
    return options_.update_site == UpdateSite::kOwner && step.max_norm > 0;
  }
  int chunk(ChunkId id) const {
    return options_.plan.buckets()[id.bucket].layout.chunk_of(id.slot);
  }
  ElementRange range(ChunkId id) const {
    return options_.plan.buckets()[id.bucket].layout.range(id.slot);
  }
  Returned returned() const {
    return options_.update_site == UpdateSite::kOwner ? Returned::kParameters : Returned::kMean;
  }
  float* grad(ChunkId id) const { return memory_[id.bucket].grad + range(id).begin; }
  float* result(ChunkId id) const;

  const RingEngineOptions options_;
  const bool begins_at_once_;  // on the thread that launches
  const std::vector<BucketMemory> memory_;
  const std::shared_ptr<RingWire> wire_;
  const std::shared_ptr<RingBroadcast> broadcast_;
  const std::shared_ptr<RingGather> gather_;  // or null
  RingOwner owner_;
  ChunkEncoder encoder_;  // its memory is lent and returned with the chunk's

  std::vector<std::vector<Loan>> loans_;  // by bucket, by 2 * slot + final

  Mutex mutex_;
  bool halted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  RingTokens tokens_ ABSL_GUARDED_BY(mutex_);
  RingNorm norm_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromise> refused_ ABSL_GUARDED_BY(mutex_);  // launched after the halt
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_ENGINE_H_
