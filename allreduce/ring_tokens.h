// What goes round the ring. The frames: how they are made and sent, what each rank may receive, and
// how a payload is taken in. And the bookkeeping of a rank: where each token is, what may be sent, when
// a bucket is complete. No threads, no I/O; ring_engine.h acts on what this says.

#ifndef GRADSYNC_ALLREDUCE_RING_TOKENS_H_
#define GRADSYNC_ALLREDUCE_RING_TOKENS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/chunk_codec.h"
#include "core/base/fifo.h"
#include "core/base/trace_recorder.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/links/frame_stream.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A frame about one chunk. `hop` as in core/plan/ring_schedule.h.
proto::FrameHeader RingHeader(proto::FrameHeader::Kind kind, const StepOptions& step, ChunkId id,
                              int hop);

// Whether the sender's step is `step`, options included.
bool IsStep(const proto::FrameHeader& header, const StepOptions& step);

// "REDUCE of bucket 3 slot 7", for errors.
std::string DescribeFrame(const proto::FrameHeader& header);

// Chunks that `rank` owns and that are not empty, in order of bucket and slot.
std::vector<ChunkId> OwnedChunks(const Plan& plan, int rank);

// Whether a rank of the ring may receive this frame at all: a kind of the ring, a chunk of the plan
// that is not empty, the hop at which it passes `rank`, and `payload_bytes` as the chunk has in the
// plan's codec; `returned` is what GATHER frames bring. What came before is not looked at.
//   SQUARES  `slot` is the rank that it comes from, and the payload one double per chunk that this
//            rank owns
//   SHARD    a chunk's parameters, where owners alone keep them; the step is the gather's number
//   CREDIT   an own token that is reduced but whose result has to wait for the norm
// Errors: INVALID_ARGUMENT, saying what was expected and what came.
absl::Status CheckRingFrame(const Plan& plan, int rank, const proto::FrameHeader& header,
                            size_t payload_bytes, Returned returned = Returned::kMean);

// The way to the next rank: chooses the connection of each frame and counts payload. Thread-safe;
// nothing blocks.
class RingWire {
 public:
  // `send` gives a frame to a connection to the next rank, 0..connections-1; it must be thread-safe
  // and must not block.
  using Send = std::function<void(int connection, OutgoingFrame frame)>;
  // `recorder` of what is sent to `next`, that rank; may be null.
  RingWire(const Plan& plan, int connections, Send send,
           std::shared_ptr<TraceRecorder> recorder = nullptr, int next = 0);

  // All frames about one chunk take the same connection, so that they stay in order. Payload
  // counts.
  void SendChunk(proto::FrameHeader header, absl::Span<const char> payload, bool urgent,
                 Release released);

  // A frame about a chunk without payload; overtakes data.
  void SendNotice(proto::FrameHeader header);

  // Numbers, not data: connection 0, not counted.
  void SendNumbers(proto::FrameHeader header, std::shared_ptr<const std::vector<double>> numbers);

  void CountReceived(int64_t bytes) { counter_.Received(bytes); }

  WireStats stats() const { return counter_.stats(); }

 private:
  int ConnectionOf(const proto::FrameHeader& header) const;

  const int connections_;
  const Send send_;
  const std::shared_ptr<TraceRecorder> recorder_;
  const int next_;
  std::vector<int> first_token_;  // by bucket
  WireCounter counter_;
};

// acc = acc + the payload's floats; the same, scaled as ChunkDecoder's kAddAndScale does; and out =
// the payload's floats. `payload.size()` must be form.bytes(), and the form not sparse.
void AddPayload(const Payload& payload, const ChunkForm& form, float* acc);
void AddPayloadAndScale(const Payload& payload, const ChunkForm& form, float* acc, float a,
                        float b);
void CopyPayload(const Payload& payload, const ChunkForm& form, float* out);

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
  // buffer (kOwner). `driver`: of the handles, as in SyncPromise.
  RingTokens(const Plan& plan, int rank, int lead, bool gather_overwrites_sum,
             const std::weak_ptr<SyncDriver>& driver = {});

  // The bucket's gradient is complete here. The handle's promise is resolved through TakeResolved()
  // or FailAll(). Frames that were held for it are due (TakeDue()). Errors: FAILED_PRECONDITION
  // when the bucket's last exchange is not complete, or a held frame was sent with other options.
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket);

  // How many frames were held for the launched bucket and are not taken yet.
  size_t due(int bucket) const { return buckets_[bucket].due.size(); }

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
    Bucket(const std::string& name, const std::weak_ptr<SyncDriver>& driver)
        : promises(name, driver) {}

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
