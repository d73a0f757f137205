#ifndef GRADSYNC_ALLREDUCE_RING_BROADCAST_H_
#define GRADSYNC_ALLREDUCE_RING_BROADCAST_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "allreduce/ring_tokens.h"
#include "core/base/mutex.h"
#include "core/group/sync_handle.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Rank 0's parameters on their way down the ring, chunk by chunk: each rank copies a chunk into
// place and passes it on from there, so that the whole takes little longer than one hop.
// Thread-safe; nothing blocks. Held by shared_ptr, since frames on their way refer to it and to the
// buckets.
class RingBroadcast : public std::enable_shared_from_this<RingBroadcast> {
 public:
  // `plan` must outlive the last call.
  RingBroadcast(const Plan& plan, int rank, std::vector<GradBucket> buckets,
                std::shared_ptr<RingWire> wire);

  // From now on PARAMETERS frames are expected (rank 0: none), of all buckets or of one. The handle
  // resolves when all these are in place here and no frame refers to them. All ranks begin before
  // rank 0 calls SendAll().
  SyncHandle Begin() { return Begin(0, static_cast<int>(plan_.buckets().size())); }
  SyncHandle BeginBucket(int bucket) { return Begin(bucket, bucket + 1); }

  // Rank 0 only: queues everything.
  void SendAll();

  // The header must have passed CheckRingFrame(). Errors: INVALID_ARGUMENT for a frame that is not
  // expected now.
  absl::Status OnParameters(const proto::FrameHeader& header, Payload payload);

  // The exchange failed.
  void Fail(absl::Status status);

 private:
  SyncHandle Begin(int first, int end);
  void Forward(ChunkId id);
  void Returned();
  void ResolveIfComplete();

  const Plan& plan_;
  const int rank_;
  const std::vector<GradBucket> buckets_;  // keeps the memory
  const std::vector<BucketMemory> memory_;
  const std::shared_ptr<RingWire> wire_;
  int first_ = 0;  // of the buckets that are broadcast; for SendAll()
  int end_ = 0;
  Mutex mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  absl::optional<SyncPromise> promise_
      ABSL_GUARDED_BY(mutex_);  // set while a broadcast is under way
  std::vector<std::vector<bool>> present_ ABSL_GUARDED_BY(mutex_);  // by bucket and slot
  int missing_ ABSL_GUARDED_BY(mutex_) = 0;
  int lent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_BROADCAST_H_
