// One server's part of all buckets under ssp or asp: gradients are applied when they arrive.

#ifndef GRADSYNC_PS_SERVER_ASYNC_SHARD_H_
#define GRADSYNC_PS_SERVER_ASYNC_SHARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/monotonic_time.h"
#include "core/links/frame_stream.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "ps_server/chunk_clocks.h"
#include "ps_server/server_event.h"
#include "ps_server/shard.h"
#include "ps_server/state_keeper.h"

namespace gradsync {

// What a shard tells its surroundings, on the thread of the call that brought it about and without
// a lock held.
class AsyncShardEvents {
 public:
  virtual ~AsyncShardEvents() = default;

  // A gradient of `rank` was applied, and the memory that held it given back.
  virtual void OnApplied(int rank) = 0;

  // The answer to a gradient: the chunk's parameters, for one worker. Whoever sends from `values`
  // lends it (LentBuffer) before this returns.
  virtual void OnAnswer(ChunkId id, const ChunkClocks::Answer& answer,
                        const std::shared_ptr<LentBuffer>& values) = 0;

  // The answer to a gradient comes later, when the bound allows.
  virtual void OnDeferred(ChunkId id, const ChunkClocks::Answer& answer) = 0;

  // All have settled: the chunk's parameters, for one of them. Likewise.
  virtual void OnFinal(ChunkId id, int rank, const std::shared_ptr<LentBuffer>& values) = 0;
};

// Update at the owner, without compression or clipping; docs/use/consistency.md has the rules.
// Thread-safe; no call waits for another rank's. After an error the numbers are worth nothing: end
// the run.
//
// Memory, per chunk: parameters, the optimizer's state, one gradient on its way into them, and as
// many copies of the parameters as streams still send from, of which one is kept for the next time.
class AsyncShard : public Shard {
 public:
  // `events` must outlive the shard; `sink` may be empty. Errors: RESOURCE_EXHAUSTED when there is
  // no memory for it.
  static absl::StatusOr<std::unique_ptr<AsyncShard>> Create(const Plan& plan,
                                                            const ShardMap& shards, int server,
                                                            Consistency consistency,
                                                            ServerEventSink sink,
                                                            AsyncShardEvents* events);
  ~AsyncShard() override;

  // `rank`'s gradient of one chunk. May apply it, and others that wait, and report events before it
  // returns. Errors: INVALID_ARGUMENT for a chunk that is not ours, a wrong size, clipping, or a
  // push before the one before was answered.
  absl::Status Push(int rank, ChunkId id, const StepOptions& step, Payload payload) override;

  // `rank` pushes nothing more until it has the final parameters, which all get who have settled
  // when nobody trains any more. Errors: INVALID_ARGUMENT in the middle of a step of its.
  absl::Status Settle(int rank) override;

  // `rank` pushes nothing more and hears nothing more; the first call counts. Errors: likewise.
  absl::Status Leave(int rank) override;

  // Ranks that have neither settled nor left while others have settled and wait for them, if nobody
  // has pushed since `since`; otherwise none.
  std::vector<int> AwaitedSince(MonotonicTime since) const override;

  // Before any step or when all have settled: new parameters of a chunk. Returns them as they are
  // kept. Errors: INVALID_ARGUMENT as for Push(); FAILED_PRECONDITION at another time.
  absl::StatusOr<std::shared_ptr<LentBuffer>> SetParameters(ChunkId id,
                                                            const Payload& payload) override;

  absl::Status Expects(proto::FrameHeader::Kind kind) const override;

  // At the same times as SetParameters().
  absl::StatusOr<std::shared_ptr<const ShardState>> ExportState() override;
  absl::Status ImportPiece(absl::string_view name, ChunkId id, const Payload& payload) override;
  absl::Status FinishImport(int64_t step, size_t pieces) override;

  // No rank is in the middle of a step of its.
  bool idle() const override;

  // As many as the gradients that came make, n to a step.
  int64_t steps() const override;

 private:
  struct Chunk;

  AsyncShard(int world_size, AsyncShardEvents* events);

  absl::StatusOr<Chunk*> Find(ChunkId id, size_t payload_bytes) const;
  absl::Status Work(Chunk& chunk);
  absl::Status Apply(Chunk& chunk, const ChunkClocks::Gradient& gradient);
  void Send(const Chunk& chunk, const ChunkClocks::Work& work);
  absl::Status Depart(int rank, absl::StatusOr<bool> (ChunkClocks::*depart)(int rank));

  const int world_size_;
  AsyncShardEvents* const events_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::vector<Chunk*>> by_id_;    // by bucket and slot; null where not ours
  std::vector<std::atomic<int64_t>> pushes_;  // by rank: chunks, ever
  enum Presence : int { kTrains, kSettled, kLeft };
  std::vector<std::atomic<int>> presence_;  // by rank
  std::atomic<int64_t> last_sign_{0};       // of life: MonotonicTime of a push or departure, in ns
  std::atomic<int64_t> last_step_{0};       // the largest number pushed, or imported
  std::unique_ptr<StateKeeper> state_;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_ASYNC_SHARD_H_
