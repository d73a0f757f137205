#include "links/frame_codec.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/slice.h"

namespace gradsync {
namespace {

using ::google::protobuf::io::CodedOutputStream;
using Released = absl::AnyInvocable<void() &&>;

constexpr uint8_t kHeaderTag = proto::Frame::kHeaderFieldNumber << 3 | 2;
constexpr uint8_t kPayloadTag = proto::Frame::kPayloadFieldNumber << 3 | 2;

grpc::Slice Lend(absl::Span<const char> payload, Released released) {
  // gRPC never writes to a slice that it sends.
  char* bytes = const_cast<char*>(payload.data());
  if (!released) return grpc::Slice(bytes, payload.size(), grpc::Slice::STATIC_SLICE);
  return grpc::Slice(
      bytes, payload.size(),
      [](void* owned) {
        std::unique_ptr<Released> released(static_cast<Released*>(owned));
        std::move (*released)();
      },
      new Released(std::move(released)));
}

// Reads on through slices as if they were one.
class SliceReader {
 public:
  explicit SliceReader(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) remaining_ += slice.size();
  }

  size_t remaining() const { return remaining_; }

  bool ReadByte(uint8_t* byte) {
    if (remaining_ == 0) return false;
    *byte = static_cast<uint8_t>(Take(1)[0]);
    return true;
  }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!ReadByte(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // At least one byte, at most `most`, that lie together; `most` must be positive and not above
  // remaining().
  absl::Span<const char> Take(size_t most) {
    while (offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
    const grpc::Slice& slice = slices_[index_];
    const size_t bytes = std::min(most, slice.size() - offset_);
    const char* begin = reinterpret_cast<const char*>(slice.begin()) + offset_;
    offset_ += bytes;
    remaining_ -= bytes;
    return absl::MakeSpan(begin, bytes);
  }

 private:
  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
};

absl::Status NotAFrame(size_t bytes) {
  return absl::DataLossError(
      absl::StrCat("a message of ", bytes, " bytes is not a gradsync.proto.Frame"));
}

bool ReadHeader(SliceReader& reader, size_t bytes, proto::FrameHeader* header) {
  header->Clear();
  if (bytes == 0) return true;
  absl::Span<const char> part = reader.Take(bytes);
  if (part.size() == bytes) return header->ParseFromArray(part.data(), static_cast<int>(bytes));
  std::string whole(part.data(), part.size());
  while (whole.size() < bytes) {
    part = reader.Take(bytes - whole.size());
    whole.append(part.data(), part.size());
  }
  return header->ParseFromString(whole);
}

absl::Status DecodeByCopy(const std::vector<grpc::Slice>& slices, proto::FrameHeader* header,
                          Payload* payload) {
  std::string whole;
  for (const grpc::Slice& slice : slices) {
    whole.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  auto frame = std::make_shared<proto::Frame>();
  if (whole.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !frame->ParseFromString(whole)) {
    return NotAFrame(whole.size());
  }
  *header = frame->header();
  if (!frame->payload().empty()) payload->parts.push_back(frame->payload());
  payload->owner = std::move(frame);
  return absl::OkStatus();
}

}  // namespace

grpc::ByteBuffer EncodeFrame(OutgoingFrame frame) {
  const size_t header_bytes = frame.header.ByteSizeLong();
  const size_t payload_bytes = frame.payload.size();
  size_t bytes = 1 + CodedOutputStream::VarintSize64(header_bytes) + header_bytes;
  if (payload_bytes > 0) bytes += 1 + CodedOutputStream::VarintSize64(payload_bytes);

  grpc::Slice slices[2] = {grpc::Slice(bytes), grpc::Slice()};
  uint8_t* out = const_cast<uint8_t*>(slices[0].begin());
  *out++ = kHeaderTag;
  out = CodedOutputStream::WriteVarint64ToArray(header_bytes, out);
  out = frame.header.SerializeWithCachedSizesToArray(out);
  if (payload_bytes == 0) {
    if (frame.released) std::move(frame.released)();
    return grpc::ByteBuffer(slices, 1);
  }
  *out++ = kPayloadTag;
  CodedOutputStream::WriteVarint64ToArray(payload_bytes, out);
  slices[1] = Lend(frame.payload, std::move(frame.released));
  return grpc::ByteBuffer(slices, 2);
}

absl::Status DecodeFrame(const grpc::ByteBuffer& message, proto::FrameHeader* header,
                         Payload* payload) {
  *payload = Payload();
  // Short slices hold their bytes themselves, so nothing may point into them before they have found
  // their last place.
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (!message.Dump(slices.get()).ok()) return NotAFrame(message.Length());

  SliceReader reader(*slices);
  const size_t message_bytes = reader.remaining();
  uint8_t tag;
  uint64_t bytes;
  if (!reader.ReadByte(&tag) || tag != kHeaderTag || !reader.ReadVarint(&bytes)) {
    return DecodeByCopy(*slices, header, payload);
  }
  if (bytes > reader.remaining() || bytes > kMaxPayloadBytes) return NotAFrame(message_bytes);
  if (!ReadHeader(reader, bytes, header)) return NotAFrame(message_bytes);
  if (reader.remaining() > 0) {
    if (!reader.ReadByte(&tag) || tag != kPayloadTag || !reader.ReadVarint(&bytes) ||
        bytes != reader.remaining()) {
      return DecodeByCopy(*slices, header, payload);
    }
    while (reader.remaining() > 0) payload->parts.push_back(reader.Take(reader.remaining()));
  }
  payload->owner = std::move(slices);
  return absl::OkStatus();
}

}  // namespace gradsync
