// The bookkeeping of a rank in the ring: where each token is, what may be sent, when a bucket is
// complete. No threads, no arithmetic, no I/O; ring_engine.h acts on what this says.

#ifndef GRADSYNC_ALLREDUCE_RING_TOKENS_H_
#define GRADSYNC_ALLREDUCE_RING_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/fifo.h"
#include "core/group/sync_handle.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A received frame that has to wait.
struct WaitingFrame {
  proto::FrameHeader header;
  Payload payload;
};

// A token is one chunk of one stripe, named by its ChunkId; see core/plan/ring_schedule.h for its
// way. Rules kept here:
//
//   Lead    At most `lead` tokens that this rank initiated are under way. A token counts until
//           its GATHER frame is received here, or its CREDIT frame when the result has to wait for
//           the norm. Others' tokens are passed on at once.
//   Hold    A REDUCE frame for a bucket that is not launched here yet is kept, never refused: the
//           others' leads bound how many there are, lead * (world_size - 1).
//   Lend    Frames to send point into the bucket. Memory that is still lent is neither overwritten
//           (a GATHER frame waits for it) nor given back to the caller (the bucket resolves when
//           all chunks are final and nothing is lent).
//
// Headers must have passed CheckRingFrame(). Not thread-safe; nothing blocks.
class RingTokens {
 public:
  // `gather_overwrites_sum`: finished chunks go where sums were sent from (kWorker), not to another
  // buffer (kOwner).
  RingTokens(const Plan& plan, int rank, int lead, bool gather_overwrites_sum);

  // The bucket's gradient is complete here. The handle's promise is resolved through TakeResolved()
  // or FailAll(). Frames that were held for it are due (TakeDue()). Errors: FAILED_PRECONDITION
  // when the bucket's last exchange is not complete, or a held frame was sent with other options.
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket);

  // A frame that was held for the launched bucket, to be folded now; each once.
  absl::optional<WaitingFrame> TakeDue(int bucket);

  // A frame came. True: fold or copy it now. False: it waits here, `*payload` was taken.
  // Errors: INVALID_ARGUMENT for a frame that cannot come now; FAILED_PRECONDITION when the
  // sender's step has other options.
  absl::StatusOr<bool> OnReduce(const proto::FrameHeader& header, Payload* payload);
  absl::StatusOr<bool> OnGather(const proto::FrameHeader& header, Payload* payload);
  absl::Status OnCredit(const proto::FrameHeader& header);

  // The next token to initiate, when the lead allows one; it is then under way.
  absl::optional<ChunkId> NextOwn();

  // A frame that points to the chunk is about to be sent: a sum, or a finished chunk.
  void LendSum(ChunkId id);
  void LendFinal(ChunkId id);

  // The frame was released. ReturnSum() says whether a GATHER frame waited for that; then it is to
  // be taken, once, and copied.
  bool ReturnSum(ChunkId id);
  absl::optional<WaitingFrame> TakeGather(ChunkId id);
  void ReturnFinal(ChunkId id);

  // The chunk's result is in place here.
  void MarkFinal(ChunkId id);

  // The bucket's promise, once, when it is complete.
  absl::optional<SyncPromise> TakeResolved(int bucket);

  // Options of the launched bucket.
  const StepOptions& step(int bucket) const { return buckets_[bucket].step; }

  // Forgets everything: the exchange failed. Returns what was open; drop it without holding a lock,
  // since dropping payloads runs the senders' callbacks.
  struct Remains {
    std::vector<SyncPromise> promises;
    std::vector<WaitingFrame> frames;
  };
  Remains FailAll();

 private:
  enum class Stage : uint8_t {
    kIdle,    // nothing of it was seen
    kSummed,  // this rank's gradient is in the sum
    kFinal,   // the result came (it may not be copied yet)
  };
  struct Token {
    Stage stage = Stage::kIdle;
    bool credited = false;  // no longer counts
    bool sum_lent = false;
    absl::optional<WaitingFrame> gather;  // waits for the sum's release
  };
  struct Bucket {
    explicit Bucket(const std::string& name) : promises(name) {}

    bool launched = false;
    StepOptions step;
    SyncPromiseSeries promises;  // the current one is open while the bucket is launched
    std::vector<Token> tokens;   // by slot
    int open = 0;                // tokens that are not final here
    int lent = 0;                // frames that are not released
    Fifo<WaitingFrame> held;     // until the launch
    Fifo<WaitingFrame> due;      // from then on
  };

  Token& token(ChunkId id) { return buckets_[id.bucket].tokens[id.slot]; }
  bool IsOwn(ChunkId id) const;
  absl::Status CheckCurrent(const proto::FrameHeader& header) const;
  absl::Status Hold(const proto::FrameHeader& header, Payload* payload);
  void Credit(ChunkId id);

  const Plan& plan_;
  const int rank_;
  const int lead_;
  const bool gather_overwrites_sum_;
  std::vector<Bucket> buckets_;
  Fifo<ChunkId> own_;  // to be initiated, in launch order
  int under_way_ = 0;  // own tokens that count
  int held_ = 0;       // REDUCE frames of all buckets
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_TOKENS_H_
