#ifndef GRADSYNC_ALLREDUCE_RING_WIRE_H_
#define GRADSYNC_ALLREDUCE_RING_WIRE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "core/base/trace_recorder.h"
#include "core/group/wire_stats.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_WIRE_H_
