// Frames, made and read: small payloads, failures, and the recording of chunks.

#ifndef GRADSYNC_CORE_LINKS_FRAMES_H_
#define GRADSYNC_CORE_LINKS_FRAMES_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/base/trace_recorder.h"
#include "core/links/frame_stream.h"
#include "proto/frame.pb.h"

namespace gradsync {

// Frames with a payload of their own, for what is small: messages, not gradients.

// A frame of this kind, with nothing in it. Thread-safe, as all here.
OutgoingFrame FrameOf(proto::FrameHeader::Kind kind);

// Gives `frame` a payload, which it then owns.
void SetPayload(std::string bytes, OutgoingFrame* frame);

// Messages that are payloads of frames: greetings and what is small otherwise.

// Far above what the HELLO of a neighbour takes: numbers, an address and a fingerprint.
constexpr size_t kMaxGreetingBytes = 16 << 10;

// Reads a protocol buffer of at most `most` bytes. False for a longer payload, of which nothing is
// copied, and for one that is no such message.
template <typename Message>
bool ParsePayload(const Payload& payload, size_t most, Message* message) {
  return payload.size() <= most && message->ParseFromString(payload.Flat());
}

// Why a peer failed, as FAILED frames say it.

// A FAILED frame's header with `error`, which is not OK; of a message above 4 KiB only
// the beginning, and U+FFFD for bytes that are not UTF-8. Thread-safe, as is FailureIn().
proto::FrameHeader FailedHeader(const absl::Status& error);

// The status in a FAILED frame that a peer sent, which may say anything: the result is never OK.
// A code that is no error's, OK included, becomes UNKNOWN, and the message says which it was. Of a
// message above 4 KiB there is only the beginning.
absl::Status FailureIn(const proto::FrameHeader& header);

// Chunks on their way, for a recording of steps (core/base/trace_recorder.h).

// Just before `frame` is given to a stream to `peer`: records it, if it is a chunk of a step that
// `recorder`, which may be null, wants, from here until its payload is released. Thread-safe.
void RecordSend(const std::shared_ptr<TraceRecorder>& recorder, int peer, OutgoingFrame* frame);

// When a frame of so many bytes of payload has come from `peer`.
void RecordReceive(TraceRecorder* recorder, int peer, const proto::FrameHeader& header,
                   size_t bytes);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_FRAMES_H_
