// Who may go on, and who does the work, for one chunk under ssp or asp.

#ifndef GRADSYNC_PS_SERVER_CHUNK_CLOCKS_H_
#define GRADSYNC_PS_SERVER_CHUNK_CLOCKS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "ps_server/server_event.h"

namespace gradsync {

// A rank's *clock* counts its gradients applied to the chunk since the last time that all had
// settled; the *slowest* is the smallest clock of ranks that still train. The answer to the
// gradient of clock c is due when the consistency allows c - slowest (docs/use/consistency.md).
//
// Gradients and departures come on many threads. Nobody waits: a thread leaves here what it brings,
// and works only if nobody else is at it. The work itself runs without a lock.
//
//   if (*clocks.Offer(rank, step, payload)) {  // the chunk is this thread's now
//     while (work = clocks.Next()) {
//       work->apply: update the parameters, then clocks.Applied(rank)
//       otherwise:   send the parameters to everybody in work->answers, and tell everybody in
//                    work->deferred that his come later
//     }
//   }
//
// Thread-safe; no method waits for a rank.
class ChunkClocks {
 public:
  // `sink` may be empty.
  ChunkClocks(ChunkId id, int world_size, Consistency consistency, ServerEventSink sink);

  struct Gradient {
    int rank = 0;
    StepOptions step;
    Payload payload;
  };
  struct Answer {
    int rank = 0;
    int64_t step = 0;       // number of the step that the rank pushed
    int64_t staleness = 0;  // clock - slowest
  };
  // Either a gradient to apply, or answers to send.
  struct Work {
    absl::optional<Gradient> apply;
    std::vector<Answer> answers;
    std::vector<Answer> deferred;  // not due yet; each told once
    bool final = false;  // the answers go to all who have settled, and the chunk begins anew
  };

  // Leaves a gradient. True when the caller owns the chunk from here and must call Next().
  // Errors: INVALID_ARGUMENT when the rank's last one was not answered yet, when it has settled or
  // left, or while the chunk is acquired.
  absl::StatusOr<bool> Offer(Gradient gradient);

  // The rank pushes nothing more until the final answer. True as for Offer(); errors likewise.
  absl::StatusOr<bool> Settle(int rank);

  // The rank pushes nothing more, and needs no answer. True as for Offer(). Errors:
  // INVALID_ARGUMENT when a gradient of its was not answered.
  absl::StatusOr<bool> Leave(int rank);

  // What to do next. Nothing when there is nothing, which ends the caller's ownership. Answers come
  // before gradients, so that under asp a rank is answered before the next gradient is applied.
  absl::optional<Work> Next();

  // The owner has applied the gradient that Next() gave.
  void Applied(int rank);

  // Takes the chunk while no clock runs; waits for a thread that still sends the final answers.
  // Ended by Release().
  // Errors: FAILED_PRECONDITION when a rank has begun steps and not settled.
  absl::Status Acquire();
  void Release();

 private:
  enum class Owner { kNobody, kWorker, kAcquired };
  enum class Phase { kTraining, kSettled, kLeft };
  struct Rank {
    Phase phase = Phase::kTraining;
    bool offered = false;   // a gradient that is not answered yet
    bool applied = false;   // and was applied
    bool deferred = false;  // and was not due then
    int64_t clock = 0;
    int64_t step = 0;  // number of the last one
  };

  absl::StatusOr<bool> Depart(int rank, Phase phase, ServerEvent::Kind kind);
  int64_t Slowest(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Log(ServerEvent::Kind kind, int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeDue(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Quiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFinal(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ChunkId chunk_;
  const Consistency consistency_;
  const ServerEventSink sink_;
  Mutex mutex_;
  CondVar freed_;
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  std::deque<Gradient> held_ ABSL_GUARDED_BY(mutex_);  // at most one of each rank
  Owner owner_ ABSL_GUARDED_BY(mutex_) = Owner::kNobody;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CHUNK_CLOCKS_H_
