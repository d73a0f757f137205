#include "worker/pipeline/tensor_ring.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/shared_memory/unix_socket.h"

namespace gradsync {
namespace {

// Where a tensor begins.
constexpr uint64_t kAlignment = 64;
constexpr size_t kSmallestRing = size_t{1} << 20;
// So many tensors of a size have room: one that is read, one that is written, and what is lost at the
// end.
constexpr size_t kTensors = 3;

// What a ring's memory begins with, a page, so that tensors begin at one too.
struct RingHeader {
  static constexpr size_t kNameBytes = 32;

  std::atomic<uint64_t> read;  // how far the receiver is
  char name[kNameBytes];
};
constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(RingHeader) <= kHeaderBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

RingHeader& HeaderOf(const Window& window) { return *reinterpret_cast<RingHeader*>(window.data()); }

size_t CapacityOf(const Window& window) { return window.size() - kHeaderBytes; }

uint64_t RoundUp(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::StatusOr<TensorRingWriter::Ring> TensorRingWriter::MakeRing(size_t capacity) {
  Ring ring;
  ring.name = NewJobKey();
  GS_ASSIGN_OR_RETURN(ring.window, Window::Create(kHeaderBytes + RoundUp(capacity)));
  ring.name.copy(HeaderOf(*ring.window).name, RingHeader::kNameBytes);
  return ring;
}

absl::StatusOr<std::unique_ptr<TensorRingWriter>> TensorRingWriter::Create() {
  GS_ASSIGN_OR_RETURN(Ring ring, MakeRing(kSmallestRing));
  return std::unique_ptr<TensorRingWriter>(new TensorRingWriter(std::move(ring)));
}

proto::RingPlace TensorRingWriter::Begin() const { return PlaceAt(0, 0); }

proto::RingPlace TensorRingWriter::PlaceAt(uint64_t position, size_t bytes) const {
  proto::RingPlace place;
  place.set_name(ring_.name);
  place.set_file(ring_.window->file());
  place.set_ring_bytes(ring_.window->size());
  place.set_position(position);
  place.set_bytes(bytes);
  return place;
}

absl::optional<proto::RingPlace> TensorRingWriter::Put(absl::Span<const char> bytes) {
  if (!old_.empty()) DropOld();
  if (bytes.size() > CapacityOf(*ring_.window) / kTensors && !Grow(bytes.size())) {
    return absl::nullopt;
  }
  const uint64_t capacity = CapacityOf(*ring_.window);
  const uint64_t left = capacity - ring_.written % capacity;  // until the ring's end
  const uint64_t begin = ring_.written + (bytes.size() > left ? left : 0);
  const uint64_t end = begin + RoundUp(bytes.size());
  if (end - HeaderOf(*ring_.window).read.load(std::memory_order_acquire) > capacity) {
    return absl::nullopt;
  }
  if (!bytes.empty()) {
    std::memcpy(ring_.window->data() + kHeaderBytes + begin % capacity, bytes.data(), bytes.size());
  }
  ring_.written = end;
  return PlaceAt(begin, bytes.size());
}

// At least twice as large as before, so that sizes that grow slowly do not make a ring each.
bool TensorRingWriter::Grow(size_t bytes) {
  if (bytes >= too_large_) return false;
  absl::StatusOr<Ring> ring =
      MakeRing(std::max<size_t>(kTensors * RoundUp(bytes), 2 * CapacityOf(*ring_.window)));
  if (!ring.ok()) {
    too_large_ = bytes;
    return false;
  }
  old_.push_back(std::exchange(ring_, *std::move(ring)));
  return true;
}

// Until the receiver has read it, an old ring's descriptor must name it.
void TensorRingWriter::DropOld() {
  const auto drained = [](const Ring& old) {
    return HeaderOf(*old.window).read.load(std::memory_order_acquire) == old.written;
  };
  old_.erase(std::remove_if(old_.begin(), old_.end(), drained), old_.end());
}

absl::StatusOr<absl::Span<const char>> TensorRingReader::At(const proto::RingPlace& place) {
  if (window_ == nullptr || place.name() != name_) GS_RETURN_IF_ERROR(Map(place));
  const uint64_t capacity = CapacityOf(*window_);
  const uint64_t begin = place.position() % capacity;
  if (place.bytes() > capacity - begin) {
    return absl::InvalidArgumentError(absl::StrCat("expected a place in a ring of ", capacity,
                                                   " bytes, found ", place.bytes(), " from ",
                                                   begin));
  }
  return absl::MakeConstSpan(window_->data() + kHeaderBytes + begin, place.bytes());
}

void TensorRingReader::Release(const proto::RingPlace& place) {
  HeaderOf(*window_).read.store(place.position() + RoundUp(place.bytes()),
                                std::memory_order_release);
}

absl::Status TensorRingReader::Map(const proto::RingPlace& place) {
  if (place.ring_bytes() <= kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("expected a ring of more than ", kHeaderBytes,
                                                   " bytes, found ", place.ring_bytes()));
  }
  const std::string path = absl::StrCat("/proc/", sender_, "/fd/", place.file());
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) {
    const bool own = errno == EMFILE || errno == ENFILE;
    return absl::Status(own ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                        absl::StrCat(path, ": ", std::strerror(errno)));
  }
  GS_ASSIGN_OR_RETURN(std::shared_ptr<Window> window,
                      Window::Map(std::move(file), place.ring_bytes()));
  if (place.name() != absl::string_view(HeaderOf(*window).name, RingHeader::kNameBytes)) {
    return absl::UnavailableError(absl::StrCat(path, " is memory of another process"));
  }
  window_ = std::move(window);
  name_ = place.name();
  return absl::OkStatus();
}

}  // namespace gradsync
