#include "core/links/frame_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/block_pool.h"
#include "core/base/mutex.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace gradsync {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;
using ::google::protobuf::io::CodedOutputStream;

constexpr uint8_t kHeaderTag = proto::Frame::kHeaderFieldNumber << 3 | 2;
constexpr uint8_t kPayloadTag = proto::Frame::kPayloadFieldNumber << 3 | 2;
constexpr uint8_t kNextTag = proto::Frame::kNextFieldNumber << 3 | 2;

// `bytes` of a field and what is in front of them.
size_t FieldBytes(size_t bytes) { return 1 + CodedOutputStream::VarintSize64(bytes) + bytes; }

// Computes the header's size too, which writing it needs.
size_t FrameBytes(const OutgoingFrame& frame) {
  const size_t header = FieldBytes(frame.header.ByteSizeLong());
  return header + (frame.payload.empty() ? 0 : FieldBytes(frame.payload.size()));
}

uint8_t* WriteTag(uint8_t tag, size_t bytes, uint8_t* out) {
  *out++ = tag;
  return CodedOutputStream::WriteVarint64ToArray(bytes, out);
}

grpc::Slice Lend(absl::Span<const char> payload, Release released) {
  // gRPC never writes to a slice that it sends.
  char* bytes = const_cast<char*>(payload.data());
  if (!released) return grpc::Slice(bytes, payload.size(), grpc::Slice::STATIC_SLICE);
  const auto call = std::move(released).Take();
  return grpc::Slice(bytes, payload.size(), call.first, call.second);
}

using Parts = std::vector<absl::Span<const char>>;

struct ReceivedFrame {
  proto::FrameHeader header;
  size_t parts_end = 0;  // of its payload, in Received::payloads
};

// A received message and what was found in it.
struct Received {
  // For any message of ours, so that none of those that are kept grows when it meets a larger one.
  Received() {
    bytes.reserve(2 * kMostFramesTogether);
    payloads.reserve(2 * kMostFramesTogether);
    frames.reserve(kMostFramesTogether);
  }

  ReceivedFrame& AddFrame() {
    if (++count > frames.size()) frames.emplace_back();
    return frames[count - 1];
  }

  grpc::ByteBuffer message;
  Parts bytes;                        // all of it, in order
  Parts payloads;                     // of all frames, in order
  std::vector<ReceivedFrame> frames;  // the first `count`; others keep their memory
  size_t count = 0;
  size_t header_bytes = 0;  // of all frames
};

// Short slices hold their bytes themselves, so the message must have found its last place.
bool FindBytes(Received* received) {
  grpc::ProtoBufferReader reader(&received->message);
  if (!reader.status().ok()) return false;
  const void* data;
  int size;
  while (reader.Next(&data, &size)) {
    received->bytes.push_back({static_cast<const char*>(data), static_cast<size_t>(size)});
  }
  return true;
}

// Reads on through parts as if they were one.
class PartsReader {
 public:
  explicit PartsReader(const Parts& parts) : parts_(parts) {
    for (absl::Span<const char> part : parts) remaining_ += part.size();
  }

  size_t remaining() const { return remaining_; }

  // Whether the next byte is `tag`; if so it is read.
  bool ReadTag(uint8_t tag) {
    if (remaining_ == 0) return false;
    SkipEmptyParts();
    if (static_cast<uint8_t>(parts_[index_][offset_]) != tag) return false;
    Take(1);
    return true;
  }

  // A length that `after` bytes must follow besides.
  bool ReadLength(size_t after, size_t* length) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!ReadByte(&byte)) return false;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte >= 0x80) continue;
      *length = value;
      return remaining_ >= after && value <= remaining_ - after && value <= kMaxPayloadBytes;
    }
    return false;
  }

  // At least one byte, at most `most`, that lie together; `most` must be positive and not above
  // remaining().
  absl::Span<const char> Take(size_t most) {
    SkipEmptyParts();
    const absl::Span<const char> taken = parts_[index_].subspan(offset_, most);
    offset_ += taken.size();
    remaining_ -= taken.size();
    return taken;
  }

 private:
  bool ReadByte(uint8_t* byte) {
    if (remaining_ == 0) return false;
    *byte = static_cast<uint8_t>(Take(1)[0]);
    return true;
  }

  void SkipEmptyParts() {
    while (offset_ == parts_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }

  const Parts& parts_;
  size_t index_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
};

absl::Status NotAFrame(size_t bytes) {
  return absl::DataLossError(
      absl::StrCat("a message of ", bytes, " bytes is not a gradsync.proto.Frame"));
}

bool ReadHeader(PartsReader& reader, size_t bytes, proto::FrameHeader* header) {
  header->Clear();
  if (bytes == 0) return true;
  absl::Span<const char> part = reader.Take(bytes);
  if (part.size() == bytes) return header->ParseFromArray(part.data(), static_cast<int>(bytes));
  // Most headers are short, and those inside a message are often cut.
  char few[256];
  std::string many(bytes > sizeof(few) ? bytes : 0, '\0');
  char* const whole = many.empty() ? few : &many[0];
  for (size_t taken = 0;; part = reader.Take(bytes - taken)) {
    std::memcpy(whole + taken, part.data(), part.size());
    taken += part.size();
    if (taken == bytes) return header->ParseFromArray(whole, static_cast<int>(bytes));
  }
}

// A frame, as far as its own `next`, that `after` bytes follow. False: not as EncodeFrames() writes.
bool ReadFrame(PartsReader& reader, size_t after, Received* received) {
  size_t bytes;
  if (!reader.ReadTag(kHeaderTag) || !reader.ReadLength(after, &bytes)) return false;
  received->header_bytes += bytes;
  if (received->count == kMostFramesTogether || received->header_bytes > kMostBytesBesidePayloads) {
    return false;
  }
  ReceivedFrame& frame = received->AddFrame();
  if (!ReadHeader(reader, bytes, &frame.header)) return false;
  if (reader.remaining() > after && reader.ReadTag(kPayloadTag)) {
    if (!reader.ReadLength(after, &bytes)) return false;
    for (const size_t end = reader.remaining() - bytes; reader.remaining() > end;) {
      received->payloads.push_back(reader.Take(reader.remaining() - end));
    }
  }
  frame.parts_end = received->payloads.size();
  return true;
}

bool ReadFrames(Received* received) {
  PartsReader reader(received->bytes);
  if (!ReadFrame(reader, 0, received)) return false;
  while (reader.remaining() > 0) {
    size_t bytes;
    if (!reader.ReadTag(kNextTag) || !reader.ReadLength(0, &bytes)) return false;
    const size_t after = reader.remaining() - bytes;
    if (!ReadFrame(reader, after, received) || reader.remaining() != after) return false;
  }
  return true;
}

absl::Status TooMuchBesidePayloads(size_t bytes) {
  return absl::DataLossError(absl::StrCat("a message of ", bytes, " bytes: expected at most ",
                                          kMostFramesTogether, " frames and ",
                                          kMostBytesBesidePayloads, " bytes besides payloads"));
}

// Bytes that protobuf would make more of than they are: of a frame all but its payload, or, where
// the frame is damaged, all that follows the damage.
size_t BytesBesidePayloads(CodedInputStream& input, bool is_next) {
  size_t bytes = input.BytesUntilLimit();
  while (const uint32_t tag = input.ReadTag()) {
    if (tag == kPayloadTag || (tag == kNextTag && !is_next)) {
      uint32_t length;
      if (!input.ReadVarint32(&length) || length > static_cast<uint32_t>(input.BytesUntilLimit())) {
        return bytes;
      }
      bytes -= length;
      if (tag == kPayloadTag) {
        input.Skip(static_cast<int>(length));
        continue;
      }
      const auto limit = input.PushLimit(static_cast<int>(length));
      bytes += BytesBesidePayloads(input, /*is_next=*/true);
      input.Skip(input.BytesUntilLimit());
      input.PopLimit(limit);
    } else if (!WireFormatLite::SkipField(&input, tag)) {
      return bytes;
    }
  }
  return bytes;
}

size_t BytesBesidePayloads(const std::string& message) {
  const int size = static_cast<int>(message.size());
  CodedInputStream input(reinterpret_cast<const uint8_t*>(message.data()), size);
  const auto limit = input.PushLimit(size);
  const size_t bytes = BytesBesidePayloads(input, /*is_next=*/false);
  input.PopLimit(limit);
  return bytes;
}

absl::Status DecodeByCopy(const Parts& parts, FrameDecoder::Deliver deliver) {
  std::string whole;
  for (absl::Span<const char> part : parts) whole.append(part.data(), part.size());
  if (whole.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return NotAFrame(whole.size());
  }
  if (BytesBesidePayloads(whole) > kMostBytesBesidePayloads) {
    return TooMuchBesidePayloads(whole.size());
  }
  auto first = std::make_shared<proto::Frame>();
  if (!first->ParseFromString(whole)) return NotAFrame(whole.size());
  if (first->next_size() >= static_cast<int>(kMostFramesTogether)) {
    return TooMuchBesidePayloads(whole.size());
  }
  std::vector<const proto::Frame*> frames = {first.get()};
  for (const proto::Frame& next : first->next()) {
    if (next.next_size() > 0) return NotAFrame(whole.size());
    frames.push_back(&next);
  }
  for (const proto::Frame* frame : frames) {
    Payload payload;
    if (!frame->payload().empty()) payload = MakePayload({frame->payload()}, first);
    if (!deliver(frame->header(), std::move(payload))) break;
  }
  return absl::OkStatus();
}

}  // namespace

size_t EncodedBytes(const OutgoingFrame& frame) { return FieldBytes(FrameBytes(frame)); }

grpc::ByteBuffer EncodeFrames(absl::Span<OutgoingFrame> frames) {
  grpc::Slice slices[2 * kMostFramesTogether];
  size_t count = 0;
  for (OutgoingFrame& frame : frames) {
    const bool is_next = count > 0;
    const size_t frame_bytes = FrameBytes(frame);
    const size_t payload_bytes = frame.payload.size();
    grpc::Slice& head = slices[count++] =
        grpc::Slice((is_next ? FieldBytes(frame_bytes) : frame_bytes) - payload_bytes);
    uint8_t* out = const_cast<uint8_t*>(head.begin());
    if (is_next) out = WriteTag(kNextTag, frame_bytes, out);
    out = WriteTag(kHeaderTag, frame.header.GetCachedSize(), out);
    out = frame.header.SerializeWithCachedSizesToArray(out);
    if (payload_bytes == 0) {
      frame.released.Run();
      continue;
    }
    WriteTag(kPayloadTag, payload_bytes, out);
    slices[count++] = Lend(frame.payload, std::move(frame.released));
  }
  return grpc::ByteBuffer(slices, count);
}

void MessageBudget::Written(size_t bytes, absl::Duration took) {
  if (took > kMostTime) {
    bytes_ = static_cast<size_t>(static_cast<double>(bytes) * absl::FDivDuration(kMostTime, took));
  } else {
    bytes_ = std::min(std::max(bytes_, 2 * bytes + kHeaderSlack), kMostBytesTogether);
  }
}

// Messages that were let go, without their bytes.
class FrameDecoder::Pool {
 public:
  std::unique_ptr<Received> Take() {
    MutexLock lock(&mutex_);
    if (free_.empty()) return std::make_unique<Received>();
    std::unique_ptr<Received> received = std::move(free_.back());
    free_.pop_back();
    return received;
  }

  void Put(std::unique_ptr<Received> received) {
    received->message.Clear();
    received->bytes.clear();
    received->payloads.clear();
    received->count = 0;
    received->header_bytes = 0;
    MutexLock lock(&mutex_);
    free_.push_back(std::move(received));
  }

  const std::shared_ptr<BlockPool> blocks = std::make_shared<BlockPool>();  // of keepers

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Received>> free_ ABSL_GUARDED_BY(mutex_);
};

// What a payload holds on to.
class FrameDecoder::Keeper {
 public:
  explicit Keeper(std::shared_ptr<Pool> pool) : pool_(std::move(pool)), received_(pool_->Take()) {}
  ~Keeper() { pool_->Put(std::move(received_)); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  Received& received() { return *received_; }

 private:
  const std::shared_ptr<Pool> pool_;
  std::unique_ptr<Received> received_;
};

FrameDecoder::FrameDecoder() : pool_(std::make_shared<Pool>()) {}

absl::Status FrameDecoder::Decode(grpc::ByteBuffer* message, Deliver deliver) const {
  auto keeper = MakePooled<Keeper>(pool_->blocks, pool_);
  Received& received = keeper->received();
  received.message.Swap(message);
  if (!FindBytes(&received)) return NotAFrame(received.message.Length());
  if (!ReadFrames(&received)) return DecodeByCopy(received.bytes, deliver);
  const absl::Span<const absl::Span<const char>> parts = received.payloads;
  size_t begin = 0;
  for (size_t i = 0; i < received.count; ++i) {
    const ReceivedFrame& frame = received.frames[i];
    Payload payload = {parts.subspan(begin, frame.parts_end - begin), keeper};
    begin = frame.parts_end;
    if (!deliver(frame.header, std::move(payload))) break;
  }
  return absl::OkStatus();
}

}  // namespace gradsync
