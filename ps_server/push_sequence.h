// The order in which a worker's chunks must come on one stream.

#ifndef GRADSYNC_PS_SERVER_PUSH_SEQUENCE_H_
#define GRADSYNC_PS_SERVER_PUSH_SEQUENCE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// Chunk number q of PushOrder() travels on connection q mod C, for gradients in each step and for
// parameters in each broadcast. Holds one stream to it: that every stream carries its worker's
// order is what keeps the fold from deadlock. Not thread-safe.
class PushSequence {
 public:
  // Of worker `rank`. `order` is this server's, and must outlive the sequence.
  PushSequence(const ServerPushOrder* order, int rank, int connection, int connections)
      : order_(order), rank_(rank), connection_(connection), connections_(connections) {
    next_push_ = next_parameters_ = connection_;
  }

  // A gradient came. Errors: INVALID_ARGUMENT saying which chunk of which step was expected, and
  // what came.
  absl::Status Push(ChunkId found, int64_t step);

  // A chunk of parameters came, which is only allowed between steps. Errors: likewise.
  absl::Status Parameters(ChunkId found);

 private:
  absl::Status Check(size_t next, ChunkId found) const;
  void Advance(size_t& next) const;

  const ServerPushOrder* order_;
  int rank_;
  size_t connection_;
  size_t connections_;
  size_t next_push_ = 0;
  size_t next_parameters_ = 0;
  int64_t step_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_PUSH_SEQUENCE_H_
