#ifndef GRADSYNC_PS_SERVER_SHARD_STATE_H_
#define GRADSYNC_PS_SERVER_SHARD_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/plan/shard_map.h"
#include "ps_server/lent_buffer.h"

namespace gradsync {

// The optimizer's state of a shard, one piece per slot and chunk that has state, copied.
struct ShardState {
  struct Piece {
    std::string name;
    ChunkId chunk;
    std::shared_ptr<LentBuffer> values;
  };
  int64_t step = 0;
  std::vector<Piece> pieces;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SHARD_STATE_H_
