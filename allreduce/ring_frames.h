// The frames of the ring: how they are made and sent, and what each rank may receive.

#ifndef GRADSYNC_ALLREDUCE_RING_FRAMES_H_
#define GRADSYNC_ALLREDUCE_RING_FRAMES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/chunk_codec.h"
#include "core/base/trace_recorder.h"
#include "core/group/wire_stats.h"
#include "core/links/frame_stream.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
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

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_FRAMES_H_
