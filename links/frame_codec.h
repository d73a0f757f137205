// Frames on the wire: the protobuf message gradsync.proto.Frame, written and read without copying
// the payload.
#ifndef GRADSYNC_LINKS_FRAME_CODEC_H_
#define GRADSYNC_LINKS_FRAME_CODEC_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "links/frame_stream.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A payload must be smaller: protobuf ends at 2 GiB.
constexpr size_t kMaxPayloadBytes = (size_t{1} << 31) - (size_t{1} << 20);

// One small slice (the header, then tag and length of the payload) and one that points at the
// payload. `released` runs when the last reference to that slice is gone, gRPC's and the buffer's;
// at once when the payload is empty. The payload must be smaller than kMaxPayloadBytes.
// Thread-safe.
grpc::ByteBuffer EncodeFrame(OutgoingFrame frame);

// Takes frames apart, of one stream or of several. Thread-safe.
class FrameDecoder {
 public:
  FrameDecoder();

  // Takes `*message`, which is empty afterwards. What EncodeFrame() writes, cut anywhere, is not
  // copied: the payload's parts point into the message, which the payload's owner keeps. What keeps
  // them is used again, so that in the long run decoding allocates nothing. Any other valid
  // encoding (fields in another order, unknown fields) is read through a copy. Errors: DATA_LOSS
  // when the message is not a Frame; then `header` and `payload` are unspecified.
  absl::Status Decode(grpc::ByteBuffer* message, proto::FrameHeader* header,
                      Payload* payload) const;

 private:
  class Keeper;
  class Pool;

  const std::shared_ptr<Pool> pool_;  // also the payloads', which may live longer than this
};

}  // namespace gradsync

#endif  // GRADSYNC_LINKS_FRAME_CODEC_H_
