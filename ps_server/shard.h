#ifndef GRADSYNC_PS_SERVER_SHARD_H_
#define GRADSYNC_PS_SERVER_SHARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/activity.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/trace_recorder.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "proto/frame.pb.h"

namespace gradsync {

// Memory for floats that may be lent to streams, which read it without copying.
//
// A fixed number of floats, or of bytes of an encoded chunk; 64-byte aligned, zero at first.
// Whoever sends from it gives the frame what Lend() returns; whoever writes to it first asks lent()
// and takes another buffer if it is. Lend and lent are thread-safe; the floats are the caller's to
// guard.
class LentBuffer : public std::enable_shared_from_this<LentBuffer> {
 public:
  // Null when there is no memory for it.
  static std::shared_ptr<LentBuffer> Create(int64_t numel) { return CreateBytes(4 * numel); }
  static std::shared_ptr<LentBuffer> CreateBytes(int64_t bytes);

  ~LentBuffer();
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;

  float* data() { return reinterpret_cast<float*>(data_); }
  int64_t numel() const { return static_cast<int64_t>(size_ / sizeof(float)); }
  char* mutable_bytes() { return data_; }
  absl::Span<const char> bytes() const { return absl::MakeConstSpan(data_, size_); }

  // Keeps the buffer alive and lent until it is run. Allocates nothing.
  Release Lend();
  bool lent() const { return lenders_.load(std::memory_order_acquire) != 0; }

 private:
  LentBuffer(char* data, size_t size) : data_(data), size_(size) {}
  static void GiveBack(void* buffer);

  char* const data_;
  const size_t size_;
  std::atomic<int> lenders_{0};  // written under the mutex
  Mutex mutex_;
  std::shared_ptr<LentBuffer> keep_ ABSL_GUARDED_BY(mutex_);  // while there are lenders
};

// Makes `buffer` one that nobody reads, so that it may be written: puts a new one in its place if
// it is lent, with the same contents if `keep`. Returns false when there is no memory.
bool MakeWritable(std::shared_ptr<LentBuffer>& buffer, bool keep);

// What a server moved: payload of gradients and parameters at the transport, without headers,
// credits, norms and optimizer state; messages are those that carry such payload.
struct ServerStats {
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
  int64_t tx_messages = 0;
  int64_t rx_messages = 0;
  // The same of steps alone, without broadcasts.
  int64_t step_tx_bytes = 0;
  int64_t step_rx_bytes = 0;
  int64_t steps = 0;        // begun in this run
  int64_t shard_bytes = 0;  // of the gradient; 0 until all workers have come
  int server = 0;           // this server's index, as the workers say
  int workers = 0;          // 0 until all have come
};

// The optimizer's state of a shard, one piece per slot and chunk that has state, copied.
struct ShardState {
  struct Piece {
    std::string name;
    ChunkId chunk;
    std::shared_ptr<LentBuffer> values;
  };
  int64_t step = 0;
  std::vector<Piece> pieces;
};

// One server's part of all buckets, as the service sees it, however gradients get there and when
// they are applied.

// Thread-safe; no call waits for another rank's. After an error the numbers are worth nothing: end
// the run. What a kind of shard is not sent (Expects()) need not be overridden: it is refused.
class Shard {
 public:
  virtual ~Shard() = default;

  // Whether workers may send this kind of shard such frames. Errors: INVALID_ARGUMENT with what was
  // expected instead.
  virtual absl::Status Expects(proto::FrameHeader::Kind kind) const = 0;

  // PUSH: `rank`'s gradient of one chunk.
  virtual absl::Status Push(int rank, ChunkId id, const StepOptions& step, Payload payload);

  // NORM: `rank`'s answer to the sums of squares of a step that clips.
  virtual absl::Status Norm(int rank, int64_t step, double norm);

  // PARAMETERS, between steps: new parameters of a chunk. Returns them as they are kept, to be sent
  // on.
  virtual absl::StatusOr<std::shared_ptr<LentBuffer>> SetParameters(ChunkId id,
                                                                    const Payload& payload);

  // SHARD: the parameters of this server's chunks of a bucket, to be sent. Whoever asks has had the
  // results of all steps that it pushed the bucket in, and pushes its next one later.
  struct KeptChunk {
    ChunkId id;
    std::shared_ptr<LentBuffer> values;
  };
  virtual absl::StatusOr<std::vector<KeptChunk>> Parameters(int bucket);

  // SETTLE: `rank` pushes nothing more until it has the final parameters.
  virtual absl::Status Settle(int rank);

  // WINDOWS: where everybody's memory is; of all workers, then all servers.
  virtual absl::Status Begin(std::vector<std::string> addresses);

  // Where workers find this server's memory; empty where they need none.
  virtual std::string window() const { return ""; }

  // GOODBYE, on any of `rank`'s streams. Errors: INVALID_ARGUMENT in the middle of a step.
  virtual absl::Status Leave(int rank);

  // Ranks for which others wait without a deadline of their own, if nobody has pushed since
  // `since`; otherwise none.
  virtual std::vector<int> AwaitedSince(MonotonicTime) const { return {}; }

  // The run has failed: does no more. Does not block.
  virtual void Halt() {}

  // The run ends in good order.
  virtual void End() {}

  // Replaces in `stats` what the service cannot see: what went past its streams.
  virtual void CountTraffic(ServerStats*) const {}

  // Between steps, under update at the owner: all state; pieces are shared between calls as long as
  // nothing changes. Errors: FAILED_PRECONDITION in the middle of a step or under update at the
  // worker; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::shared_ptr<const ShardState>> ExportState() = 0;

  // Between steps: replaces the state. Pieces come one by one, all slots of a chunk or none; a
  // chunk without a piece begins anew. FinishImport() gives the number of steps done and of pieces.
  // Errors: as ExportState(); INVALID_ARGUMENT for a piece that does not fit, or when pieces are
  // missing.
  virtual absl::Status ImportPiece(absl::string_view name, ChunkId id, const Payload& payload) = 0;
  virtual absl::Status FinishImport(int64_t step, size_t pieces) = 0;

  // From here on, before the first frame: records what is done, here and in the shard's own way.
  // May be null.
  void Record(std::shared_ptr<TraceRecorder> recorder) { recorder_ = std::move(recorder); }

  // Likewise: counts there each part of what a call does, since one call may be all of the shard's work.
  void CountIn(std::shared_ptr<Activity> activity) { activity_ = std::move(activity); }

  // True between steps.
  virtual bool idle() const = 0;

  // Begun so far.
  virtual int64_t steps() const = 0;

 protected:
  const std::shared_ptr<TraceRecorder>& recorder() const { return recorder_; }
  void CountWork() const { CountActivity(activity_.get()); }

 private:
  absl::Status Refuse(proto::FrameHeader::Kind kind) const;

  std::shared_ptr<TraceRecorder> recorder_;
  std::shared_ptr<Activity> activity_;
};

// What a worker is told that sends WINDOWS where none are expected.
absl::Status UnexpectedWindows();

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SHARD_H_
