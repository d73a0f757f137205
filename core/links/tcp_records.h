// What goes over a connection of the TCP link: records, one after another, in each direction.
//
// A record is a prefix of 16 bytes, a header and, for frames, a payload:
//
//   0  2  "GS"
//   2  1  version of the format: 1
//   3  1  type (TcpRecord::Type)
//   4  4  bytes of the header, little-endian
//   8  8  bytes of the payload, little-endian
//
// The header of a frame is a FrameHeader and that of an end an Error (proto/frame.proto), of an opening
// a TcpOpening as below, of a challenge and a proof their text (core/base/secret_proof.h); other
// records have none. What comes behind a kTls is TLS, with all other records inside it.
//
// Private to core/links/tcp_stream.

#ifndef GRADSYNC_CORE_LINKS_TCP_RECORDS_H_
#define GRADSYNC_CORE_LINKS_TCP_RECORDS_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/block_pool.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"

namespace gradsync {

struct TcpRecord {
  enum Type : uint8_t {
    kOpening = 1,
    kChallenge = 2,
    kProof = 3,
    kAccepted = 4,
    kFrame = 5,
    kFinish = 6,  // nothing more will be sent
    kEnd = 7,     // from the accepting side: the stream ends, or was refused, for this reason
    kPing = 8,
    kPong = 9,
    kTls = 10,  // first, from the side that connects, in the clear
  };
  static constexpr size_t kPrefixBytes = 16;
  static constexpr uint8_t kVersion = 1;

  Type type = kFrame;
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
};

// What the side that connects says first: two times 4 bytes, the oldest and the newest version that it
// speaks; 1 byte, 1 if it has the job's secret and will answer a challenge, else 0; 4 bytes, the size
// of the run's id, which follows; the rest is the job's key.
struct TcpOpening {
  uint32_t oldest_version = TcpRecord::kVersion;
  uint32_t newest_version = TcpRecord::kVersion;
  bool has_secret = false;
  StreamProof proof;

  std::string Encode() const;
  // Errors: DATA_LOSS.
  static absl::StatusOr<TcpOpening> Decode(absl::string_view header);
};

// The 16 bytes before a record, appended to `bytes`.
void AppendPrefix(const TcpRecord& record, std::string* bytes);

// Appends a whole record without a payload. `header`: serialized.
void AppendRecord(TcpRecord::Type type, absl::string_view header, std::string* bytes);

// Reads kPrefixBytes. Errors: DATA_LOSS for bytes that are no prefix.
absl::StatusOr<TcpRecord> ReadPrefix(const char* bytes);

// Memory for what is received, which is used again: a fresh piece of many pages would be zeroed by
// the kernel first. Pieces have powers of two of bytes. Thread-safe; never waits.
class ReceiveMemory : public std::enable_shared_from_this<ReceiveMemory> {
 public:
  static constexpr size_t kSmallestPiece = 64 << 10;
  static constexpr size_t kLargestPiece = 4 << 20;
  // What is kept for later.
  static constexpr size_t kMostKept = 64 << 20;

  // Given back when it is destroyed.
  class Piece {
   public:
    Piece() = default;
    Piece(Piece&& other) noexcept
        : memory_(std::move(other.memory_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}
    Piece& operator=(Piece&& other) noexcept {
      std::swap(memory_, other.memory_);
      std::swap(data_, other.data_);
      std::swap(size_, other.size_);
      return *this;
    }
    ~Piece() {
      if (data_ != nullptr) memory_->Put(data_, size_);
    }

    char* data() const { return data_; }
    size_t size() const { return size_; }

   private:
    friend class ReceiveMemory;
    std::shared_ptr<ReceiveMemory> memory_;
    char* data_ = nullptr;
    size_t size_ = 0;
  };

  ReceiveMemory() : objects_(std::make_shared<BlockPool>()) {}
  ~ReceiveMemory();
  ReceiveMemory(const ReceiveMemory&) = delete;
  ReceiveMemory& operator=(const ReceiveMemory&) = delete;

  // Of at least `bytes`, at most kLargestPiece.
  Piece Take(size_t bytes);

  // Where what describes a payload is kept.
  const std::shared_ptr<BlockPool>& objects() const { return objects_; }

 private:
  static int ClassOf(size_t bytes);
  void Put(char* data, size_t size);

  const std::shared_ptr<BlockPool> objects_;
  Mutex mutex_;
  size_t kept_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<char*> free_[7] ABSL_GUARDED_BY(mutex_);  // by class of size
};

// Makes records of received bytes, which the kernel puts where the reader says: what is small side
// by side into one piece of memory, from which payloads are handed on as they lie, and a larger
// payload into memory of its own. Not thread-safe.
class RecordReader {
 public:
  // What a record may have, at most.
  struct Limits {
    size_t header_bytes = 1 << 20;
    uint64_t payload_bytes = std::numeric_limits<uint64_t>::max();
  };
  // Returns whether more records are wanted. The header is valid during the call, the payload as
  // long as its owner.
  using Take =
      absl::FunctionRef<bool(TcpRecord::Type type, absl::string_view header, Payload payload)>;

  RecordReader(std::shared_ptr<ReceiveMemory> memory, Limits limits)
      : memory_(std::move(memory)), limits_(limits) {}

  void set_limits(Limits limits) { limits_ = limits; }

  // Where the next bytes belong, in order: one or two places. Returns their number.
  int Places(iovec places[2]);

  // `bytes` more are there. Errors: DATA_LOSS for what is no record, RESOURCE_EXHAUSTED for one
  // beyond the limits; afterwards the reader is of no use any more.
  absl::Status Received(size_t bytes, Take take);

 private:
  // Payloads up to this size are handed on from where they were received.
  static constexpr size_t kSmall = 16 << 10;
  // What is read beyond a large payload: the next record's prefix and header, and little of a payload
  // that would have to be moved.
  static constexpr size_t kAhead = 256;

  // What belongs to a payload: where its bytes are, for as long as somebody holds it.
  struct Held {
    std::shared_ptr<const ReceiveMemory::Piece> shared;  // a small one's
    std::vector<ReceiveMemory::Piece> own;               // a large one's
    std::vector<absl::Span<const char>> more_parts;      // where there are several
    absl::Span<const char> part;
  };

  size_t staged() const { return end_ - begin_; }
  const char* at() const { return staging_->data() + begin_; }
  absl::Status Parse(Take take, bool* wanted);
  void BeginPayload();
  iovec PayloadPlace();
  void AddToPayload(size_t bytes);
  void MoveIntoPayload();
  bool PayloadIsWhole() const { return filled_ == record_.payload_bytes; }
  Payload TakeLargePayload();
  Payload SmallPayload(absl::Span<const char> bytes) const;

  const std::shared_ptr<ReceiveMemory> memory_;
  Limits limits_;
  // [begin_, end_) of it is received and not yet parsed; what is before may be somebody's payload.
  std::shared_ptr<ReceiveMemory::Piece> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t needed_ = TcpRecord::kPrefixBytes;  // staged in one piece, before anything can be done
  bool last_was_large_ = false;
  // Of a record with a large payload, while that comes.
  bool in_payload_ = false;
  TcpRecord record_;
  std::string header_;
  std::vector<ReceiveMemory::Piece> pieces_;
  uint64_t filled_ = 0;      // of the payload
  size_t piece_filled_ = 0;  // of the last piece
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_RECORDS_H_
