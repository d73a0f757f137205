// Frames on the wire: the protobuf message gradsync.proto.Frame, one frame or several, written and
// read without copying payloads.
#ifndef GRADSYNC_CORE_LINKS_FRAME_CODEC_H_
#define GRADSYNC_CORE_LINKS_FRAME_CODEC_H_

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/links/frame_stream.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A payload must be smaller: protobuf ends at 2 GiB.
constexpr size_t kMaxPayloadBytes = (size_t{1} << 31) - (size_t{1} << 20);

// Frames that go in one message, and the bytes of a message that has more than one: all listeners
// take so many, and no more frames.
constexpr size_t kMostFramesTogether = 32;
constexpr size_t kMostBytesTogether = size_t{1} << 20;

// Bytes of a message besides its payloads. An empty field of two bytes may take a hundred once it is
// read.
constexpr size_t kMostBytesBesidePayloads = size_t{1} << 20;

// At most how many bytes of a message `frame` takes.
size_t EncodedBytes(const OutgoingFrame& frame);

// One message of 1 to kMostFramesTogether frames, which are taken. For each one small slice (the
// header, then tag and length of the payload) and one that points at the payload. `released` runs
// when the last reference to that slice is gone, gRPC's and the buffer's; at once when the payload
// is empty. A payload must be smaller than kMaxPayloadBytes. Thread-safe.
grpc::ByteBuffer EncodeFrames(absl::Span<OutgoingFrame> frames);

// How many bytes go in one message of a stream.
//
// gRPC hands over whole messages only, and each costs a round trip (docs/internals/grpc_link.md). So frames
// that wait go together where the stream is fast, and one by one where the first would be held up
// by those behind it: a message has as many bytes as the stream lately moved in kMostTime, at most
// kMostBytesTogether. Arithmetic only; thread-compatible.
class MessageBudget {
 public:
  static constexpr absl::Duration kMostTime = absl::Milliseconds(2);

  // By what headers of frames whose payloads have the same size may differ.
  static constexpr size_t kHeaderSlack = 256;

  size_t bytes() const { return bytes_; }

  // A message of so many bytes has left after so long. One that was quick says only that one of
  // twice its frames may be tried, since most of what a small one takes is no matter of its size.
  void Written(size_t bytes, absl::Duration took);

 private:
  size_t bytes_ = 0;
};

// Takes messages apart, of one stream or of several. Thread-safe.
class FrameDecoder {
 public:
  // False: no more frames.
  using Deliver = absl::FunctionRef<bool(const proto::FrameHeader&, Payload)>;

  FrameDecoder();

  // Takes `*message`, which is empty afterwards, and delivers its frames one after another. What
  // EncodeFrames() writes, cut anywhere, is not copied: the payloads' parts point into the message,
  // which each payload's owner keeps. What keeps them is used again, so that in the long run
  // decoding allocates nothing. Any other valid encoding (fields in another order, unknown fields)
  // is read through a copy. Errors: DATA_LOSS when the message is not a Frame, has more than
  // kMostFramesTogether frames, or more than kMostBytesBesidePayloads; then nothing is delivered.
  absl::Status Decode(grpc::ByteBuffer* message, Deliver deliver) const;

 private:
  class Keeper;
  class Pool;

  const std::shared_ptr<Pool> pool_;  // also the payloads', which may live longer than this
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_FRAME_CODEC_H_
