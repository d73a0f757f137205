// Frames on the wire: the protobuf message gradsync.proto.Frame, written and read without copying
// the payload.
#ifndef GRADSYNC_LINKS_FRAME_CODEC_H_
#define GRADSYNC_LINKS_FRAME_CODEC_H_

#include <cstddef>

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

// Takes a message apart. What EncodeFrame() writes, cut anywhere, is not copied: the payload's
// parts point into the message's slices, which its owner keeps. Any other valid encoding (fields in
// another order, unknown fields) is read through a copy. Thread-safe. Errors: DATA_LOSS when the
// message is not a Frame; then `header` and `payload` are unspecified.
absl::Status DecodeFrame(const grpc::ByteBuffer& message, proto::FrameHeader* header,
                         Payload* payload);

}  // namespace gradsync

#endif  // GRADSYNC_LINKS_FRAME_CODEC_H_
