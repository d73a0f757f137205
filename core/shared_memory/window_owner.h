// The owner's half of an exchange over windows: of a rank in a ring, or of a parameter server.

#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_OWNER_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_OWNER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "core/base/trace_recorder.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/window_group.h"

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
//                        then the updated parameters into all parameters, from the same rank's;
//                        or, where owners keep parameters alone, into the owner's shard.
//
// Tiny buckets' means have no owner: each worker folds what all have posted into its own gradient.
//
// So an owner needs no buffers of its own, and a rank of a ring works in its own window. When a
// step clips (max_norm > 0, with an updater), owners leave their means there until the step's end,
// read each other's sums of squares, then update.
//
// Chunks are taken one by one, the last first: the end of a bucket was written last, and may still
// be in a cache. Without an updater any worker can do any chunk, since all windows are mapped
// everywhere: ranks of a ring that share a core do those of others that have none at the moment,
// and workers with servers those of small buckets.
//
// Allocates nothing after construction, never blocks. Only one thread at a time may call Reduce();
// the rest is thread-safe.
class WindowOwner {
 public:
  // `windows` must outlive this object. `recorder` of chunks that are folded and updated; may be
  // null.
  WindowOwner(GroupWindows* windows, ChunkUpdater update,
              std::shared_ptr<TraceRecorder> recorder = nullptr);

  // Whether there is something to do. Out of date at once while another thread is in Reduce().
  bool CanReduce() const;

  // Begins to get the gradients of others that the bucket's next launch will change, from the cores that
  // wrote them, if it is a small one of one chunk.
  void FetchAhead(int bucket);

  // Does a part of it: a chunk, or what follows the last one. CanReduce() holds. With `help`, also
  // chunks of other ranks, if their owners have not taken them.
  // Errors: FAILED_PRECONDITION naming two ranks that disagree about the step's options.
  absl::Status Reduce(bool help);

  // Reduce() of the next launch, where that is posted and all posts are there.
  absl::Status ReducePosts(int64_t launch, int bucket);

  // Without an updater: the next launch was completed by others.
  void LeaveBehind() { reduced_.store(reduced() + 1, std::memory_order_release); }

  // The last launch that Reduce() completed for all. Of the thread that reduces.
  int64_t completed() const { return completed_; }

  // Whether `help` can be had.
  bool can_help() const { return lists_.size() > 1; }

  // Nothing that Reduce() does is seen as done by anybody from here on.
  void Halt();
  bool halted() const { return halted_.load(std::memory_order_acquire); }

  // Launches that were left behind: nothing is to be done for them here. Behind launched() also
  // where others did this member's chunks and did not ring it.
  int64_t reduced() const { return reduced_.load(std::memory_order_acquire); }

  // Launches of all workers.
  int64_t launched() const;

  // Number of the last step begun; 0 before the first.
  int64_t last_step() const { return last_step_.load(std::memory_order_relaxed); }

 private:
  // What one member owns.
  struct List {
    int member = 0;
    std::vector<ChunkId> chunks;
    std::vector<size_t> first;  // of each bucket in chunks, and one more at the end
  };

  bool clips() const { return update_ != nullptr && step_.max_norm > 0; }
  bool IsWorker() const { return windows_.self() < workers_; }
  int Home(ChunkId id) const;
  ElementRange Range(ChunkId id) const;
  List ListOf(int member) const;
  uint32_t Parts(int bucket) const;
  absl::optional<size_t> Take(const List& list, int64_t launch, int bucket);
  absl::Status AgreeOnStep(int64_t launch);
  absl::Status AgreeOnStep(int64_t place, absl::FunctionRef<std::array<uint64_t, 4>(int)> note);
  void ReduceChunk(ChunkId id, size_t chunk);
  void Finish(int64_t launch, uint32_t parts);
  absl::Status Pass(int64_t launch);
  void Clip(int64_t launch);
  void UpdateAndStore(size_t chunk);
  int BucketOf(int64_t launch) const { return static_cast<int>((launch - 1) % buckets_); }
  const List& own() const { return lists_[0]; }

  GroupWindows& windows_;
  const ChunkUpdater update_;
  const std::shared_ptr<TraceRecorder> recorder_;
  const int workers_;
  const int buckets_;
  std::vector<List> lists_;      // of this member, then of those that it can help
  std::vector<uint32_t> parts_;  // by bucket: chunks of all owners, and what they finish besides
  std::atomic<bool> halted_{false};
  std::atomic<int64_t> reduced_{0};
  std::atomic<int64_t> last_step_{0};
  std::atomic<uint32_t> measured_{0};  // steps whose sums of squares were published
  std::atomic<bool> clipping_{false};  // the last of them is not updated yet

  // Of the thread that reduces.
  int64_t completed_ = 0;
  StepOptions step_;
  int64_t agreed_ = -1;       // step_'s place among the steps
  std::vector<size_t> next_;  // by member: scratch of Clip()
  std::vector<const float*> ins_;
  std::vector<float*> outs_;
  std::array<std::array<float, WindowGroup::kTinyFloats>, WindowGroup::kMostPosting> posted_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_OWNER_H_
