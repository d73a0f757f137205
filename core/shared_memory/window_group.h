// Who shares windows in a job, and what each has in its own.

#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_GROUP_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_GROUP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_layout.h"
#include "core/shared_memory/window_mesh.h"
#include "core/shared_memory/window_posts.h"
#include "core/shared_memory/window_signals.h"

namespace gradsync {

// Members are the workers, by rank, and after them the servers if there are any. Every chunk has
// one *owner*: without servers rank c owns chunk c of each stripe, as a ring ends them; with
// servers the shard map says which. Immutable, hence thread-safe.
class WindowGroup {
 public:
  // A ring, or parameter servers with `shards`, which must be made from `plan`. `names`: what all
  // members are called in the job; none: as their places in this group.
  explicit WindowGroup(const Plan& plan, absl::optional<ShardMap> shards = absl::nullopt,
                       std::vector<std::string> names = {},
                       UpdateSite update_site = UpdateSite::kWorker);

  const Plan& plan() const { return plan_; }
  int workers() const { return plan_.world_size(); }
  int members() const { return owners().last; }
  WindowSignals::Holders owners() const;

  // Member that owns the chunk.
  int owner(ChunkId id) const;

  // Chunks that `member` owns and that are not empty, in order of bucket and slot.
  std::vector<ChunkId> OwnedChunks(int member) const;

  // Whether a bucket is so small that its exchange is over before a thread could be woken for it.
  // One without elements is nobody's who waits.
  bool IsSmall(int bucket) const;

  // Everybody reads everybody's post, and adds up all: beyond these that is longer than what it saves.
  static constexpr int64_t kTinyFloats = 128;
  static constexpr int kMostPosting = 8;

  // Whether a bucket is so small, and its means are so few workers', that each of them adds up for itself
  // what all have posted (window_posts.h).
  bool IsTiny(int bucket) const { return tiny_[bucket]; }

  // Of a bucket of one chunk, as a tiny one is: that one's; else -1.
  int sole_slot(int bucket) const { return sole_slots_[bucket]; }

  // Whether that is so in launch number `launch`, one of this bucket's. The first step is servers', if there
  // are any: after it they are known to be there, and to count.
  bool IsPosted(int bucket, int64_t launch) const {
    return IsTiny(bucket) && (!shards_.has_value() || launch > static_cast<int64_t>(tiny_.size()));
  }

  // How many of the first `launches` are this bucket's.
  int64_t LaunchesOf(int bucket, int64_t launches) const;

  // What `member`, as the owner of its chunks, stores into others' windows in one exchange of the
  // bucket; messages are chunks.
  struct Stored {
    int64_t bytes = 0;
    int64_t messages = 0;
  };
  Stored StoredBy(int member, int bucket) const;

  WindowLayout Layout(int member) const;

  // What the members of parameter servers' groups greet each other with.
  static std::string PsGreeting(absl::string_view run_id, int attempt, const Plan& plan);

  // "rank 3" or "server 1 (10.0.0.7:4000)", for messages.
  std::string Name(int member) const;

  // For WindowMesh: all members are linked with all, so that everybody sees who is ready, and
  // notices who is gone.
  std::vector<WindowMeshOptions::Member> MeshMembers() const;

 private:
  const Plan plan_;
  const absl::optional<ShardMap> shards_;
  const std::vector<std::string> names_;
  std::vector<int> sole_slots_;  // by bucket
  std::vector<bool> tiny_;       // by bucket
};

// How far a member, and the group, are with the current launch of a bucket. In every window.
struct BucketProgress {
  // Of the member's chunks: launch number and how many somebody has taken (window_owner.h).
  alignas(64) std::atomic<uint64_t> taken;
  // Of a small bucket of one chunk, with its owner: launches by all workers. Beside what the last one
  // changes next.
  std::atomic<uint32_t> arrived;
  // Of the group; in rank 0's window.
  std::atomic<uint32_t> finished;  // parts of the launch
  // Number of the last launch that is complete: for all, in rank 0's window; of those that are posted, here.
  // On a line of its own, since who waits looks at it all the time.
  alignas(64) std::atomic<uint32_t> done;
};
static_assert(sizeof(BucketProgress) == WindowLayout::kProgressBytes);

// The windows of all members, mapped here, as member `self` uses them. Constant and thread-safe;
// the memory itself is the users' to synchronise, by signals().
class GroupWindows {
 public:
  // `windows` by member, each of the size that the group's Layout() gives.
  GroupWindows(std::shared_ptr<const WindowGroup> group, int self,
               std::vector<std::shared_ptr<Window>> windows);

  const WindowGroup& group() const { return *group_; }
  const Plan& plan() const { return group_->plan(); }
  int self() const { return self_; }
  const Window& window(int member) const { return *windows_[member]; }
  WindowSignals& signals() { return signals_; }

  BucketProgress& progress(int member, int bucket) const { return *progress_[member][bucket]; }

  // Of a small bucket of one chunk, where that chunk is taken; else null.
  BucketProgress* sole_progress(int bucket) const { return sole_[bucket]; }

  // Of a tiny bucket.
  const WindowPosts& posts(int bucket) const { return *posts_[bucket]; }
  // Which of the bucket's launches it is, from 1.
  int64_t RoundOf(int64_t launch) const {
    return (launch - 1) / static_cast<int64_t>(plan().buckets().size()) + 1;
  }

  // Whether launch number `launch`, one of this bucket's, is complete: nobody reads any worker's
  // gradient any more, and all results are there; of one that is posted, all of this worker's.
  bool Done(int bucket, int64_t launch) const;

  // Flat buffers of a worker's bucket.
  float* grad(int rank, int bucket) const { return buckets_[rank][bucket].grad; }
  float* param(int rank, int bucket) const { return buckets_[rank][bucket].param; }

  // The parameters of a chunk that is not empty, in its owner's window; only where the plan has
  // slots of parameters.
  bool sharded() const { return plan().slots().parameters > 0; }
  float* shard(ChunkId id) const { return shards_[id.bucket][id.slot]; }

  // One for each of the member's chunks.
  absl::Span<double> squares(int member) const { return squares_[member]; }

 private:
  struct Bucket {
    float* grad;
    float* param;
  };

  void PlaceShards();
  BucketProgress* SoleProgress(int bucket) const;

  const std::shared_ptr<const WindowGroup> group_;
  const int self_;
  const std::vector<std::shared_ptr<Window>> windows_;
  std::vector<std::vector<BucketProgress*>> progress_;  // by member, by bucket
  std::vector<BucketProgress*> sole_;                   // by bucket
  std::vector<absl::optional<WindowPosts>> posts_;      // by bucket
  std::vector<std::vector<Bucket>> buckets_;            // by rank, by bucket
  std::vector<absl::Span<double>> squares_;             // by member
  std::vector<std::vector<float*>> shards_;             // by bucket, by slot
  WindowSignals signals_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_GROUP_H_
