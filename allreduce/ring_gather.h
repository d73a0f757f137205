#ifndef GRADSYNC_ALLREDUCE_RING_GATHER_H_
#define GRADSYNC_ALLREDUCE_RING_GATHER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allreduce/ring_tokens.h"
#include "core/base/mutex.h"
#include "core/group/sync_handle.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "proto/frame.pb.h"

namespace gradsync {

// The parameters of the chunks that a rank owns, where nobody else keeps them, and how a bucket's
// go round when all need them: each rank sends its own chunks, copies what comes into the bucket's
// `param` and passes it on from there, as GATHER frames are. One round is a gather, the first of a
// bucket has number 1; frames of a gather that this rank has not begun are held, which are at most
// those of the gathers that it is behind.
//
// Thread-safe; nothing blocks. Held by shared_ptr, since frames on their way refer to it and to the
// buckets.
class RingGather : public std::enable_shared_from_this<RingGather> {
 public:
  // `plan` must outlive the last call.
  RingGather(const Plan& plan, int rank, std::vector<GradBucket> buckets,
             std::shared_ptr<RingWire> wire);

  // Of an owned chunk that is not empty.
  float* shard(ChunkId id) { return shard_.data() + offsets_[id.bucket][id.slot]; }

  // Keeps this rank's chunks of what is in the bucket's `param`.
  void Store(int bucket);

  // As GradientSync::Gather(). The bucket's last gather has resolved.
  SyncHandle Gather(int bucket);

  // The header must have passed CheckRingFrame(). Errors: INVALID_ARGUMENT for a frame that cannot
  // come now.
  absl::Status OnShard(const proto::FrameHeader& header, Payload payload);

  // Nothing completes from here on.
  void Halt();

  // The exchange failed.
  void Fail(absl::Status status);

 private:
  struct Frame {
    proto::FrameHeader header;
    Payload payload;
  };
  struct Bucket {
    uint64_t number = 0;  // of the last gather that began here
    bool open = false;
    SyncPromise promise = SyncPromise("a gather");
    std::vector<bool> present;  // by slot, in the gather under way
    int missing = 0;
    int lent = 0;
    std::vector<Frame> held;  // of the next gather
  };

  void Take(const proto::FrameHeader& header, Payload payload);
  void Send(uint64_t number, ChunkId id);
  void Returned(int bucket);
  void ResolveIfComplete(int bucket);
  ElementRange range(ChunkId id) const { return plan_.buckets()[id.bucket].layout.range(id.slot); }

  const Plan& plan_;
  const int rank_;
  const std::vector<GradBucket> buckets_;  // keeps the memory
  const std::vector<BucketMemory> memory_;
  const std::shared_ptr<RingWire> wire_;
  std::vector<std::vector<int64_t>> offsets_;  // into shard_, by bucket and slot; -1: not owned
  std::vector<float> shard_;

  Mutex mutex_;
  bool halted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::vector<Bucket> gathers_ ABSL_GUARDED_BY(mutex_);  // by bucket
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_GATHER_H_
