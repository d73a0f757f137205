// Memory through which a process hands tensors to another one of its host. What says of a tensor that
// it has come, and in which order, is a message on a stream between the two (stage_link.h); here are
// only the bytes, which the sender copies in and the receiver copies out.

#ifndef GRADSYNC_WORKER_PIPELINE_TENSOR_RING_H_
#define GRADSYNC_WORKER_PIPELINE_TENSOR_RING_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/shared_memory/window.h"
#include "proto/pipeline.pb.h"

namespace gradsync {

// The sender's end. It makes a larger ring where a tensor is large for the one that it has, so that
// there is room for a few. Thread-compatible.
class TensorRingWriter {
 public:
  // Errors: those of Window::Create().
  static absl::StatusOr<std::unique_ptr<TensorRingWriter>> Create();

  // An empty place, for the receiver to see whether it can map the ring.
  proto::RingPlace Begin() const;

  // Copies `bytes`, and says where they lie: to be received in the order of these calls. Nothing where
  // there is no room, because the receiver is behind or memory is short: then they have to be sent
  // otherwise. Never waits.
  absl::optional<proto::RingPlace> Put(absl::Span<const char> bytes);

 private:
  // Positions count bytes since the ring began; one is at its remainder by the capacity.
  struct Ring {
    std::string name;
    std::shared_ptr<Window> window;
    uint64_t written = 0;
  };

  explicit TensorRingWriter(Ring ring) : ring_(std::move(ring)) {}
  static absl::StatusOr<Ring> MakeRing(size_t capacity);
  proto::RingPlace PlaceAt(uint64_t position, size_t bytes) const;
  bool Grow(size_t bytes);
  void DropOld();

  Ring ring_;
  std::vector<Ring> old_;                                  // of which the receiver has not read all
  size_t too_large_ = std::numeric_limits<size_t>::max();  // for the memory that there was
};

// The receiver's end. Thread-compatible.
class TensorRingReader {
 public:
  // Of the sender's process, by the number that it has where it runs.
  explicit TensorRingReader(pid_t sender) : sender_(sender) {}

  // The bytes there, until Release() of the same place. Maps a ring when it is first named. Errors:
  // INVALID_ARGUMENT for a place outside the ring, or that is no ring; UNAVAILABLE when this process
  // cannot reach the sender's memory, and why: it is of another user, its number is another process's
  // here, or it is gone; RESOURCE_EXHAUSTED.
  absl::StatusOr<absl::Span<const char>> At(const proto::RingPlace& place);

  // The sender may write there again, and where was read before.
  void Release(const proto::RingPlace& place);

 private:
  absl::Status Map(const proto::RingPlace& place);

  pid_t sender_;
  std::string name_;  // of the ring that is mapped
  std::shared_ptr<Window> window_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_TENSOR_RING_H_
