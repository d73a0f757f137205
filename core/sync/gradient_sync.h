// THE CONTRACT. Start reading here.
//
// A GradientSync makes n workers that each computed gradients on their own part of a batch behave
// like one worker that computed them on the whole. Parameter servers and rings implement this one
// interface, and so can anything else:
//
//   sync->Bind(plan)                    one flat gradient and one flat parameter buffer per bucket
//   sync->BroadcastParameters()         everybody starts from rank 0's values
//   each step: handle[b] = sync->Launch(step, b)  as buckets become ready, in index order
//              handle[b].Wait()                   then the bucket's result is in its buffer
//   sync->Settle()                      the same parameters everywhere, under every consistency
//   sync->Shutdown()
//
// What a resolved handle has left in the bucket depends on who runs the optimizer:
//   UpdateSite::kWorker   `grad` holds the mean over workers; the caller updates `param`.
//   UpdateSite::kOwner    `param` holds the updated values; `grad` holds nothing of meaning. An
//                         owner is the chunk's server (parameter servers) or its rank (ring:
//                         reduce-scatter, update of the own chunks with 1/n of the optimizer's
//                         state, all-gather of parameters, which is ZeRO-1 for the bytes of an
//                         allreduce).
//
// With kOwner buckets may share memory, as the plan says (BucketSlots of core/plan/plan.h). Slots
// of gradients: a bucket's gradient exists from its first write to the resolution of its handle,
// and then another bucket's lies there; nothing of it is kept but what the owners made of it
// (ZeRO-2). Slots of parameters: owners alone keep parameters, Launch() returns none, and whoever
// computes asks for them, bucket by bucket (ZeRO-3):
//
//   sync->Bind(plan)
//   for each b: sync->StoreParameters(b)       instead of BroadcastParameters()
//   each step: sync->Gather(b).Wait()          before each use of the bucket's parameters
//              handle[b] = sync->Launch(step, b)
//
// The mean is the same, to the bit, for every backend that folds in the plan's order (stripes.h).
//
// Errors, everywhere: INVALID_ARGUMENT options; FAILED_PRECONDITION plans differ, launch out of
// order, not bound; DEADLINE_EXCEEDED a peer or server is silent (named); UNAVAILABLE connection
// lost, seen first here; ABORTED another rank failed first (its rank and status); CANCELLED this
// rank shut down, or was aborted without a reason; RESOURCE_EXHAUSTED no memory for the buckets;
// DATA_LOSS length or checksum; PERMISSION_DENIED and UNAUTHENTICATED credentials; INTERNAL CUDA or
// NCCL. Failures are final: after the first one every handle fails, and the way back is a
// checkpoint.

#ifndef GRADSYNC_CORE_SYNC_GRADIENT_SYNC_H_
#define GRADSYNC_CORE_SYNC_GRADIENT_SYNC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/gpu/gpu_api.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"

namespace gradsync {

// What one rank keeps for itself from step to step, free of buckets and chunks, so that any backend
// of the same plan can take it.
struct RankState {
  // Under topk (core/plan/codec.h): parameter name -> what of its gradients was not told yet, in
  // units of the gradient without a loss scale, in the parameter's memory order.
  std::map<std::string, std::vector<float>> residuals;
};

// How old the parameters were that this rank's steps ended with (docs/use/consistency.md):
// `histogram[s]` steps were given parameters that lacked s steps of the slowest worker, the most
// that any part of them lacked. The last element is above 0; empty where every step waits for all.
struct Staleness {
  std::vector<int64_t> histogram;

  void Count(int64_t missed) {
    if (missed >= static_cast<int64_t>(histogram.size())) histogram.resize(missed + 1);
    ++histogram[missed];
  }

  int64_t max() const { return histogram.empty() ? 0 : static_cast<int64_t>(histogram.size()) - 1; }
};

// What a backend is, as the object that runs says it. Records are filled from this and never from
// what was asked for.
struct SyncIdentity {
  // `connections` are per pair of peers; 0 where there are none.
  SyncIdentity(Backend backend, Consistency consistency = {}, int connections = 0)
      : backend(backend), consistency(consistency), connections(connections) {}

  Backend backend;
  Consistency consistency;
  int connections;
};

// What a buffer's elements are. All that is exchanged today.
enum class ElementType { kFloat32 };

// Contiguous elements, 64-byte aligned, in memory that `memory` keeps alive, also after the backend
// is gone: plain, shared, pinned or registered memory, or that of a GPU. Copies share the elements.
struct FlatBuffer {
  static constexpr int kHost = -1;

  void* data = nullptr;
  int64_t numel = 0;
  ElementType type = ElementType::kFloat32;
  int device = kHost;  // or the ordinal of the CUDA device that has the memory
  std::shared_ptr<const void> memory;

  // The elements of a buffer of kFloat32. Those of a GPU are not the host's to touch.
  float* floats() const { return static_cast<float*>(data); }
};

// The two buffers of a bucket, of BucketPlan::numel elements each, zero at first; where buckets share
// memory they are the same as others'. The padding between tensors must be zero in every gradient
// that is launched.
struct GradBucket {
  FlatBuffer grad;
  FlatBuffer param;
};

// The raw memory of a bucket, for code that only computes. Does not own.
struct BucketMemory {
  float* grad = nullptr;
  float* param = nullptr;
  int64_t numel = 0;
};

std::vector<BucketMemory> MemoryOf(const std::vector<GradBucket>& buckets);

// Calls must not overlap, except status() and Abort(), which are thread-safe. No method throws.
//
// All backends answer alike, with the same code and words (core/group/sync_life.h): after a failure
// every call returns it; before a successful Bind() all others, Shutdown() included, are
// FAILED_PRECONDITION and change nothing; after Shutdown() they are CANCELLED, a second Shutdown()
// is OK, and Abort() does nothing.
class GradientSync {
 public:
  virtual ~GradientSync() = default;

  // Collective, once, first. Allocates the buckets. Every rank must pass the same plan.
  // Errors: FAILED_PRECONDITION when plans differ (both fingerprints and the first difference) or
  // on a second call, which changes nothing; INVALID_ARGUMENT when the plan is for another world
  // size; RESOURCE_EXHAUSTED with the bytes that the buckets are; DEADLINE_EXCEEDED and UNAVAILABLE
  // naming the peer.
  virtual absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) = 0;

  // Collective. Copies rank 0's `param` buffers to all ranks, and to the owners; not where the plan
  // has slots of parameters, which have no room for them (FAILED_PRECONDITION). Called after
  // Bind() and before the first Launch(), or between steps when nothing is in flight.
  virtual absl::Status BroadcastParameters(Deadline deadline) = 0;

  // Queues the exchange of one bucket, whose `grad` is complete; from here to the handle's
  // resolution the bucket's buffers belong to the backend. Never waits for a peer. Buckets are
  // launched in index order, each once per step, steps in increasing order, and a step begins after
  // all handles of the one before were resolved; anything else is FAILED_PRECONDITION in the handle
  // and fails the group. Every backend checks all of this (core/sync/group_sync.h).
  virtual SyncHandle Launch(const StepOptions& step, int bucket) = 0;

  // Only where the plan has slots of parameters: fills the bucket's `param` with what its owners
  // hold. Until the handle resolves the slot's memory belongs to the backend; then its values are
  // the bucket's until another is gathered into the slot, or this one is launched. All ranks gather
  // the same buckets in the same order, and none whose launch has not resolved. Never waits for a
  // peer.
  virtual SyncHandle Gather(int bucket);

  // Collective, where the plan has slots of parameters, between steps: owners take rank 0's values
  // of the bucket from its `param`.
  virtual absl::Status StoreParameters(int bucket, Deadline deadline);

  virtual UpdateSite update_site() const = 0;

  // What this object is. From the start; does not change.
  virtual SyncIdentity identity() const = 0;

  // The GPU in whose memory the buckets lie; null when that is the host's. Then "complete" and
  // "there" mean: in the order of streams. Launch() takes what was queued on the compute stream of
  // the calling thread (GpuApi::ComputeStream()), and SyncHandle::Wait() makes the compute stream
  // of its caller wait for the bucket's result. From the start; does not change.
  virtual std::shared_ptr<GpuApi> gpu() const { return nullptr; }

  // Collective, between steps; ranks may come after different numbers of steps. Says that this rank
  // begins no step before it returns, so that nobody waits for it, and blocks until all ranks have
  // come; then all have the same parameters in their buckets, with every step of every rank.
  // Backends whose every step waits for all have nothing to do, and return at once.
  virtual absl::Status Settle(Deadline deadline) = 0;

  // Collective, between steps. The optimizer's state by parameter name, gathered from all owners,
  // whole on every rank. Under kWorker the caller has the state, and the result is empty. State
  // exported by one backend can be imported by any other, with any number of servers.
  virtual absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) = 0;

  // Collective, after Bind() and between steps; every rank passes the same state. An empty state
  // resets to the beginning. Errors: INVALID_ARGUMENT when a name, slot or size does not fit the
  // plan, whatever has become of the group. What error feedback (core/plan/codec.h, topk) kept of
  // earlier gradients is each rank's own: it is dropped, here as in a new process, for
  // ImportRankState() to bring back.
  virtual absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) = 0;

  // Between steps, of this rank alone: nobody is waited for. What it keeps for itself; with what
  // ImportOptimizerState() takes and the parameters it is all that decides the steps that follow.
  // Empty where nothing is kept.
  virtual absl::StatusOr<RankState> ExportRankState() = 0;

  // The same rank's, after ImportOptimizerState() or in its place; what is not in `state` is
  // forgotten. Errors: INVALID_ARGUMENT when a name or size does not fit the plan, or the plan
  // keeps nothing.
  virtual absl::Status ImportRankState(const RankState& state) = 0;

  // The first asynchronous failure, or OK. Sticky. Thread-safe.
  virtual absl::Status status() const = 0;

  // Ends the exchange for the whole group: publishes `reason` as this rank's error, then closes.
  // Outstanding handles resolve with an error. Never waits; thread-safe; the first call counts. OK
  // as a reason becomes CANCELLED.
  virtual void Abort(absl::Status reason) = 0;

  // Collective. Leaves in good order, after the last handle was resolved. Without it the destructor
  // leaves as if aborted with CANCELLED. A second call is OK and does nothing.
  virtual absl::Status Shutdown(Deadline deadline) = 0;

  // Payload bytes that this rank sent and received since Bind(), broadcasts included.
  virtual WireStats wire_stats() const = 0;

  // Of this rank's steps since Bind().
  virtual Staleness staleness() const { return Staleness(); }
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_GRADIENT_SYNC_H_
