// Frames on the wire: the protobuf message gradsync.proto.Frame, one frame or several, written and
// read without copying payloads.
#ifndef GRADSYNC_CORE_LINKS_FRAME_CODEC_H_
#define GRADSYNC_CORE_LINKS_FRAME_CODEC_H_

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
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
