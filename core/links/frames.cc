#include "core/links/frames.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/monotonic_time.h"
#include "core/base/utf8.h"

namespace gradsync {

OutgoingFrame FrameOf(proto::FrameHeader::Kind kind) {
  OutgoingFrame frame;
  frame.header.set_kind(kind);
  return frame;
}

void SetPayload(std::string bytes, OutgoingFrame* frame) {
  auto kept = std::make_shared<const std::string>(std::move(bytes));
  frame->payload = absl::MakeConstSpan(kept->data(), kept->size());
  frame->released = [kept] {};
}

namespace {

// A message is for people, and may quote what a peer said.
constexpr size_t kMaxMessageBytes = 4096;

// It travels as a string of protobuf, in which a peer takes UTF-8 only, and may have been cut
// before.
std::string Clipped(absl::string_view message) { return AsUtf8(message, kMaxMessageBytes); }

}  // namespace

proto::FrameHeader FailedHeader(const absl::Status& error) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::FAILED);
  header.mutable_error()->set_code(static_cast<int>(error.code()));
  header.mutable_error()->set_message(Clipped(error.message()));
  return header;
}

absl::Status FailureIn(const proto::FrameHeader& header) {
  const int code = header.error().code();
  if (code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::Status(static_cast<absl::StatusCode>(code), Clipped(header.error().message()));
  }
  return absl::UnknownError(absl::StrCat("FAILED: expected the code of an error, found ", code,
                                         " with \"", Clipped(header.error().message()), "\""));
}

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
