#include "links/frame_codec.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/block_pool.h"
#include "base/mutex.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace gradsync {
namespace {

using ::google::protobuf::io::CodedOutputStream;

constexpr uint8_t kHeaderTag = proto::Frame::kHeaderFieldNumber << 3 | 2;
constexpr uint8_t kPayloadTag = proto::Frame::kPayloadFieldNumber << 3 | 2;

grpc::Slice Lend(absl::Span<const char> payload, Release released) {
  // gRPC never writes to a slice that it sends.
  char* bytes = const_cast<char*>(payload.data());
  if (!released) return grpc::Slice(bytes, payload.size(), grpc::Slice::STATIC_SLICE);
  const auto call = std::move(released).Take();
  return grpc::Slice(bytes, payload.size(), call.first, call.second);
}

using Parts = std::vector<absl::Span<const char>>;

// A received message and what was found in it.
struct Received {
  grpc::ByteBuffer message;
  Parts bytes;    // all of it, in order
  Parts payload;  // the end of that
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
    while (offset_ == parts_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
    const absl::Span<const char> taken = parts_[index_].subspan(offset_, most);
    offset_ += taken.size();
    remaining_ -= taken.size();
    return taken;
  }

 private:
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
  std::string whole(part.data(), part.size());
  while (whole.size() < bytes) {
    part = reader.Take(bytes - whole.size());
    whole.append(part.data(), part.size());
  }
  return header->ParseFromString(whole);
}

absl::Status DecodeByCopy(const Parts& parts, proto::FrameHeader* header, Payload* payload) {
  std::string whole;
  for (absl::Span<const char> part : parts) whole.append(part.data(), part.size());
  auto frame = std::make_shared<proto::Frame>();
  if (whole.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !frame->ParseFromString(whole)) {
    return NotAFrame(whole.size());
  }
  *header = frame->header();
  if (!frame->payload().empty()) *payload = MakePayload({frame->payload()}, frame);
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
    frame.released.Run();
    return grpc::ByteBuffer(slices, 1);
  }
  *out++ = kPayloadTag;
  CodedOutputStream::WriteVarint64ToArray(payload_bytes, out);
  slices[1] = Lend(frame.payload, std::move(frame.released));
  return grpc::ByteBuffer(slices, 2);
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
    received->payload.clear();
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

absl::Status FrameDecoder::Decode(grpc::ByteBuffer* message, proto::FrameHeader* header,
                                  Payload* payload) const {
  *payload = Payload();
  auto keeper = MakePooled<Keeper>(pool_->blocks, pool_);
  Received& received = keeper->received();
  received.message.Swap(message);
  if (!FindBytes(&received)) return NotAFrame(received.message.Length());

  PartsReader reader(received.bytes);
  const size_t message_bytes = reader.remaining();
  uint8_t tag;
  uint64_t bytes;
  if (!reader.ReadByte(&tag) || tag != kHeaderTag || !reader.ReadVarint(&bytes)) {
    return DecodeByCopy(received.bytes, header, payload);
  }
  if (bytes > reader.remaining() || bytes > kMaxPayloadBytes) return NotAFrame(message_bytes);
  if (!ReadHeader(reader, bytes, header)) return NotAFrame(message_bytes);
  if (reader.remaining() > 0) {
    if (!reader.ReadByte(&tag) || tag != kPayloadTag || !reader.ReadVarint(&bytes) ||
        bytes != reader.remaining()) {
      return DecodeByCopy(received.bytes, header, payload);
    }
    while (reader.remaining() > 0) received.payload.push_back(reader.Take(reader.remaining()));
  }
  payload->parts = received.payload;
  payload->owner = std::move(keeper);
  return absl::OkStatus();
}

}  // namespace gradsync
