// Export and import of the optimizer's state of a shard, chunk by chunk.

#ifndef GRADSYNC_PS_SERVER_STATE_KEEPER_H_
#define GRADSYNC_PS_SERVER_STATE_KEEPER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "core/optim/range_optimizer.h"
#include "core/plan/shard_map.h"
#include "ps_server/shard.h"

namespace gradsync {

// Whether calls come at a time between steps is the shard's to check. Thread-safe; what is done to
// a chunk is done between acquiring and releasing it.
class StateKeeper {
 public:
  struct Part {
    ChunkId chunk;
    RangeOptimizer* optimizer = nullptr;  // must outlive the keeper
    std::function<absl::Status()> acquire;
    std::function<void()> release;
  };

  StateKeeper(std::vector<std::string> slot_names, std::vector<Part> parts)
      : slot_names_(std::move(slot_names)), parts_(std::move(parts)) {}

  // State after step `step`; shared between calls for one step. Errors: those of acquiring;
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<const ShardState>> Export(int64_t step);

  // One slot of a chunk, whose payload has the right size. The first one since Export() or Finish()
  // clears the state of all. Errors: those of acquiring; INVALID_ARGUMENT for another chunk or
  // slot.
  absl::Status Import(absl::string_view name, ChunkId id, const Payload& payload);

  // Ends an import of `pieces` pieces, after step `step`; with none the state is cleared.
  // Errors: INVALID_ARGUMENT when another number came, or the step is negative.
  absl::Status Finish(int64_t step, size_t pieces);

 private:
  absl::Status Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<std::string> slot_names_;
  const std::vector<Part> parts_;
  Mutex mutex_;
  size_t imported_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t exported_step_ ABSL_GUARDED_BY(mutex_) = -1;
  std::weak_ptr<const ShardState> exported_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_STATE_KEEPER_H_
