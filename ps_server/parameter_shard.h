// One server's part of all buckets: what is done with gradients, without streams.

#ifndef GRADSYNC_PS_SERVER_PARAMETER_SHARD_H_
#define GRADSYNC_PS_SERVER_PARAMETER_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard.h"
#include "ps_server/state_keeper.h"
#include "ps_server/step_progress.h"

namespace gradsync {

// Whose turn it is in the fold of one chunk, and who does the folding.
//
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

// What a shard tells its surroundings, on the thread of the call that brought it about and without
// a lock held.
class ShardEvents {
 public:
  virtual ~ShardEvents() = default;

  // A contribution of `rank` was folded, and the memory that held it given back.
  virtual void OnFolded(int rank) = 0;

  // A chunk is complete: the payload of the mean (update at the worker), in its ReturnedForm()
  // (core/plan/codec.h), or of the updated parameters (update at the owner), for every worker.
  // Whoever sends from `values` lends it (LentBuffer).
  virtual void OnResult(ChunkId id, int64_t step, std::shared_ptr<LentBuffer> values) = 0;

  // Update at the owner with clipping: sums of squares of the mean, one per chunk in the order of
  // chunk_ids(), for every worker. The step goes on when each has answered with the norm.
  virtual void OnSquares(int64_t step, std::vector<double> squares) = 0;
};

// Thread-safe; no call waits for another rank's. After an error the numbers are worth nothing: end
// the run.
//
// Memory, per chunk: two accumulators under update at the worker, used in turn, because workers
// that are ahead push to the next step while the means of this one are still being sent to others.
// Under update at the owner one accumulator does: it is read for the last time by the optimizer,
// before the result is sent and thus before anyone begins the next step; what is sent is the
// parameters. The same holds under compression, where what is sent is the encoded mean, in a buffer
// of its own; the accumulator then serves again at once. A buffer that a stream still reads when it
// is to be written again (possible only between a peer's receipt and the release here) is replaced
// by a new one, so nothing ever waits for a release.
class ParameterShard : public Shard {
 public:
  // `holds_first`: the first contribution to a chunk waits where it was received until the second
  // can be added to it, which saves copying it. Only if each worker may have two chunks on their
  // way: the second contribution comes after a first one of the same worker, which may be waiting.
  // `events` must outlive the shard. Errors: RESOURCE_EXHAUSTED when there is no memory for it.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(const Plan& plan,
                                                                const ShardMap& shards, int server,
                                                                proto::UpdateSite site,
                                                                bool holds_first,
                                                                ShardEvents* events);
  ~ParameterShard() override;

  // Own chunks that are not empty, by bucket and slot.
  const std::vector<ChunkId>& chunk_ids() const { return chunk_ids_; }

  // `rank`'s gradient of one chunk. May fold, finish the chunk and report events before it returns.
  // Errors: INVALID_ARGUMENT for a chunk that is not ours, a wrong size, a second push of it in one
  // step, or a step about which ranks disagree.
  absl::Status Push(int rank, ChunkId id, const StepOptions& step, Payload payload) override;

  // `rank`'s answer to OnSquares. The last one updates the whole shard before it returns.
  // Errors: INVALID_ARGUMENT when not expected, or when ranks disagree.
  absl::Status Norm(int rank, int64_t step, double norm) override;

  // Between steps: new parameters of a chunk. Returns them as they are kept, to be sent on.
  // Errors: INVALID_ARGUMENT as for Push(); FAILED_PRECONDITION in the middle of a step.
  absl::StatusOr<std::shared_ptr<LentBuffer>> SetParameters(ChunkId id,
                                                            const Payload& payload) override;

  // Errors: INVALID_ARGUMENT for a bucket that is none, or unless servers alone keep parameters.
  absl::StatusOr<std::vector<KeptChunk>> Parameters(int bucket) override;

  absl::Status Expects(proto::FrameHeader::Kind kind) const override;
  absl::StatusOr<std::shared_ptr<const ShardState>> ExportState() override;
  absl::Status ImportPiece(absl::string_view name, ChunkId id, const Payload& payload) override;
  absl::Status FinishImport(int64_t step, size_t pieces) override;
  bool idle() const override { return progress_.idle(); }
  int64_t steps() const override { return progress_.steps_begun(); }

 private:
  struct Chunk;

  ParameterShard(const Plan& plan, proto::UpdateSite site, bool holds_first, int chunks,
                 ShardEvents* events);

  bool at_owner() const { return site_ == proto::OWNER; }
  // Sums are sent from where they were made.
  bool sends_sums() const { return !at_owner() && !codec_.compresses(); }
  // `codec`: of the payload.
  absl::StatusOr<Chunk*> Find(ChunkId id, size_t payload_bytes, Codec codec) const;
  absl::Status Fold(Chunk& chunk);
  absl::Status Take(Chunk& chunk, const ChunkTurns::Turn& turn);
  absl::Status FinishFold(Chunk& chunk);
  absl::Status Finish(Chunk& chunk, const StepOptions& step);
  void Publish(Chunk& chunk);
  absl::Status CheckStateAccess() const;
  std::unique_ptr<StateKeeper> MakeStateKeeper(std::vector<std::string> slot_names);

  const int world_size_;
  const Codec codec_;
  const proto::UpdateSite site_;
  const bool holds_first_;
  const bool keeps_parameters_;
  ShardEvents* const events_;
  std::vector<ChunkId> chunk_ids_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // as chunk_ids_
  std::vector<std::vector<Chunk*>> by_id_;      // by bucket and slot; null where not ours
  StepProgress progress_;
  Mutex published_mutex_;
  std::unique_ptr<StateKeeper> state_;  // update at the owner
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_PARAMETER_SHARD_H_
