// The owner's half of an exchange over windows: of a rank in a ring, or of a parameter server.

#ifndef GRADSYNC_LINKS_WINDOW_OWNER_H_
#define GRADSYNC_LINKS_WINDOW_OWNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "links/window_group.h"
#include "plan/shard_map.h"
#include "plan/step_options.h"

namespace gradsync {

// Updates the parameters of OwnedChunks()[chunk] from their mean; both begin at the chunk. The
// optimizer is the caller's, since this layer has none.
using ChunkUpdater =
    std::function<void(size_t chunk, float* param, const float* mean, const StepOptions& step)>;

// Does what one member owes the others for the chunks that it owns. When a bucket was launched by
// all workers, folds these chunks from everybody's gradients, in the plan's order, and stores the
// results into everybody's buffers, in one pass:
//
//   without an updater   the mean, into all gradients;
//   with one             the mean into one gradient, that of the rank which is last in the fold;
//                        then the updated parameters into all parameters, from the same rank's.
//
// So an owner needs no buffers of its own, and a rank of a ring works in its own window. When a
// step clips (max_norm > 0, with an updater), owners leave their means there until the step's end,
// read each other's sums of squares, then update.
//
// Allocates nothing after construction. CanReduce() and Reduce() belong to one thread; the rest is
// thread-safe.
class WindowOwner {
 public:
  // `windows` must outlive this object.
  WindowOwner(GroupWindows* windows, ChunkUpdater update);

  // Whether all workers have launched the next bucket.
  bool CanReduce() const;

  // Does the own part of it; CanReduce() holds. `after_chunk` is called after each chunk but those
  // of a clipped step's end. Blocks only where a step that clips ends, until all owners are there.
  // Errors: FAILED_PRECONDITION naming two ranks that disagree about the step's options.
  absl::Status Reduce(absl::FunctionRef<void()> after_chunk);

  // Reduce() does no more: the one under way returns soon, and is not seen as done by anybody.
  void Halt();
  bool halted() const { return halted_.load(std::memory_order_acquire); }

  // Buckets reduced so far.
  int64_t reduced() const { return reduced_.load(std::memory_order_acquire); }

  // Number of the last step begun; 0 before the first.
  int64_t last_step() const { return last_step_.load(std::memory_order_relaxed); }

  // Stored into others' windows so far; messages are chunks.
  int64_t stored_bytes() const { return stored_bytes_.load(std::memory_order_relaxed); }
  int64_t stored_messages() const { return stored_messages_.load(std::memory_order_relaxed); }

 private:
  bool clips() const { return update_ != nullptr && step_.max_norm > 0; }
  int Home(SegmentId id) const;
  ElementRange Range(SegmentId id) const;
  absl::Status AgreeOnStep();
  void ReduceChunk(size_t chunk);
  void Clip();
  void UpdateAndStore(size_t chunk);
  void CountStored(int64_t bytes);

  GroupWindows& windows_;
  const ChunkUpdater update_;
  const int workers_;
  const int buckets_;
  const int others_;  // workers but for this member
  const std::vector<SegmentId> chunks_;
  std::vector<size_t> first_;  // of each bucket in chunks_, and one more at the end
  std::atomic<bool> halted_{false};
  std::atomic<int64_t> reduced_{0};
  std::atomic<int64_t> last_step_{0};
  std::atomic<int64_t> stored_bytes_{0};
  std::atomic<int64_t> stored_messages_{0};

  // Of the thread that reduces.
  StepOptions step_;
  uint32_t measured_ = 0;
  std::vector<size_t> next_;  // by member: scratch of Clip()
  std::vector<const float*> ins_;
  std::vector<float*> outs_;
};

}  // namespace gradsync

#endif  // GRADSYNC_LINKS_WINDOW_OWNER_H_
