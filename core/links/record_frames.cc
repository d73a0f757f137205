#include "core/links/record_frames.h"

#include <cstdint>
#include <utility>

#include "core/base/monotonic_time.h"

namespace gradsync {
namespace {

ChunkWay WayOf(const proto::FrameHeader& header) {
  switch (header.kind()) {
    case proto::FrameHeader::REDUCE:
    case proto::FrameHeader::PUSH:
      return ChunkWay::kThere;
    case proto::FrameHeader::GATHER:
    case proto::FrameHeader::PULL:
      return ChunkWay::kBack;
    default:
      return ChunkWay::kNone;
  }
}

TraceEvent EventOf(TraceSpan what, int peer, const proto::FrameHeader& header, size_t bytes) {
  TraceEvent event;
  event.what = what;
  event.step = static_cast<int64_t>(header.step());
  event.bucket = static_cast<int>(header.bucket());
  event.slot = static_cast<int>(header.slot());
  event.peer = peer;
  event.way = WayOf(header);
  event.bytes = static_cast<int64_t>(bytes);
  event.begin = event.end = MonotonicTime::Now();
  return event;
}

bool IsRecorded(const TraceRecorder* recorder, const proto::FrameHeader& header) {
  return Records(recorder, static_cast<int64_t>(header.step())) && WayOf(header) != ChunkWay::kNone;
}

}  // namespace

void RecordSend(const std::shared_ptr<TraceRecorder>& recorder, int peer, OutgoingFrame* frame) {
  if (!IsRecorded(recorder.get(), frame->header)) return;
  TraceEvent event = EventOf(TraceSpan::kSend, peer, frame->header, frame->payload.size());
  // What is released may end the last wait of a step: it is recorded before.
  frame->released = [recorder, event, released = std::move(frame->released)]() mutable {
    event.end = MonotonicTime::Now();
    recorder->Add(event);
    released.Run();
  };
}

void RecordReceive(TraceRecorder* recorder, int peer, const proto::FrameHeader& header,
                   size_t bytes) {
  if (IsRecorded(recorder, header)) {
    recorder->Add(EventOf(TraceSpan::kReceive, peer, header, bytes));
  }
}

}  // namespace gradsync
