// Whose turn it is in the fold of one chunk, and who does the folding.

#ifndef GRADSYNC_PS_SERVER_CHUNK_TURNS_H_
#define GRADSYNC_PS_SERVER_CHUNK_TURNS_H_

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Contributions to a chunk arrive on many threads in any order and are folded in the order of
// stripes.h. Nobody waits: a thread that brings a contribution leaves it here, and folds only if it
// finds the next one present and nobody else at it. The arithmetic itself runs without a lock.
//
//   if (*turns.Offer(rank, payload)) {  // the chunk is this thread's now
//     while (turn = turns.Next()) {
//       add turn->payload;
//       if (turn->last) { finish; turns.Restart(); break; }
//     }
//   }
//
// Thread-safe; no method blocks for longer than a few assignments.
class ChunkTurns {
 public:
  // `chunk` is the chunk's place within its stripe.
  ChunkTurns(int chunk, int world_size);

  struct Turn {
    int rank = 0;
    bool first = false;
    bool last = false;
    Payload payload;
  };

  // Leaves `rank`'s contribution. True when the caller owns the chunk from here and must call
  // Next(). Errors: INVALID_ARGUMENT when the rank has contributed already, or the chunk is owned
  // by Acquire().
  absl::StatusOr<bool> Offer(int rank, Payload payload);

  // The next contribution. Nothing when it has not come yet, which ends the caller's ownership.
  // After the last turn the caller owns the chunk until Restart().
  absl::optional<Turn> Next();

  // Takes the chunk between two folds. Ended by Restart().
  // Errors: FAILED_PRECONDITION when a fold is under way.
  absl::Status Acquire();

  // Ends ownership; the chunk is ready for the next step.
  void Restart();

 private:
  enum class Owner { kNobody, kFolder, kAcquired };

  const int chunk_;
  const int world_size_;
  Mutex mutex_;
  // By position. A server has many chunks, and most hold nothing most of the time.
  absl::flat_hash_map<int, Payload> held_ ABSL_GUARDED_BY(mutex_);
  int next_ ABSL_GUARDED_BY(mutex_) = 0;  // position
  Owner owner_ ABSL_GUARDED_BY(mutex_) = Owner::kNobody;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CHUNK_TURNS_H_
