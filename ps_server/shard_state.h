#ifndef GRADSYNC_PS_SERVER_SHARD_STATE_H_
#define GRADSYNC_PS_SERVER_SHARD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "links/frame_stream.h"
#include "plan/shard_map.h"
#include "ps_server/lent_buffer.h"

namespace gradsync {

// The optimizer's state of a shard, one piece per slot and chunk that has state, copied.
struct ShardState {
  struct Piece {
    std::string name;
    SegmentId segment;
    std::shared_ptr<LentBuffer> values;
  };
  int64_t step = 0;
  std::vector<Piece> pieces;
};

// What a service needs to know of a shard, however gradients get there. Thread-safe; nothing blocks
// for long.
class ShardStateHolder {
 public:
  virtual ~ShardStateHolder() = default;

  // Between steps, under update at the owner: all state; pieces are shared between calls as long as
  // nothing changes. Errors: FAILED_PRECONDITION in the middle of a step or under update at the
  // worker; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::shared_ptr<const ShardState>> ExportState() = 0;

  // Between steps: replaces the state. Pieces come one by one, all slots of a chunk or none; a
  // chunk without a piece begins anew. FinishImport() gives the number of steps done and of pieces.
  // Errors: as ExportState(); INVALID_ARGUMENT for a piece that does not fit, or when pieces are
  // missing.
  virtual absl::Status ImportPiece(absl::string_view name, SegmentId segment,
                                   const Payload& payload) = 0;
  virtual absl::Status FinishImport(int64_t step, size_t pieces) = 0;

  // True between steps.
  virtual bool idle() const = 0;

  // Begun so far.
  virtual int64_t steps() const = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SHARD_STATE_H_
