// The run once all workers have come: takes each frame of theirs to this server's shard, and what the
// shard answers to the streams of those whom it is for.

#ifndef GRADSYNC_PS_SERVER_SHARD_ROUTER_H_
#define GRADSYNC_PS_SERVER_SHARD_ROUTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/trace_recorder.h"
#include "core/links/frame_stream.h"
#include "core/plan/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/admission.h"
#include "ps_server/async_shard.h"
#include "ps_server/parameter_shard.h"
#include "ps_server/roster.h"
#include "ps_server/server_event.h"
#include "ps_server/shard.h"
#include "ps_server/step_progress.h"

namespace gradsync {

struct ShardRouterOptions {
  absl::Duration
      timeout;           // what windows take to connect, and how long their processes may be silent
  ServerEventSink sink;  // hears what happens under ssp and asp; may be empty
  std::shared_ptr<Activity> activity;
  // A member whose memory is shared is lost; on a thread of the shard.
  std::function<void(absl::Status)> on_lost;
};

// Thread-safe once all are connected, but frames of one stream come one at a time. Waits for nobody.
class ShardRouter : private ShardEvents, private AsyncShardEvents {
 public:
  // Makes this server's shard, as the roster has it, which is complete. Takes the time and the memory
  // that the share of the plan does. Errors: those of the shards and of MakeWindowShard().
  static absl::StatusOr<std::unique_ptr<ShardRouter>> Create(const Roster& roster,
                                                             ShardRouterOptions options);

  // Each stream of each worker, once, before the first frame; and then tells it that all have come.
  void Connect(const MemberStream& member);
  void Welcome(const MemberStream& member) const;

  // What a worker sent on one of its streams after the answer to its hello; but not the answer to
  // GOODBYE, which says nothing to the shard but that the worker leaves. Errors: INVALID_ARGUMENT for
  // what is against the rules of ps_server/service.h; those of the shard, after which the run is to
  // end.
  absl::Status Route(int rank, int connection, const proto::FrameHeader& header, Payload payload);

  Shard& shard() const { return *shard_; }
  int streams() const { return terms_.world_size() * terms_.connections(); }  // of all workers

  // All but ServerStats::server.
  void Count(ServerStats* stats) const;

 private:
  // A stream of a worker.
  struct Lane {
    int rank = 0;
    int connection = 0;
    std::shared_ptr<FrameStream> stream;
    absl::optional<PushSequence> sequence;  // belongs to the stream's callbacks
  };

  ShardRouter(const Roster& roster, ShardRouterOptions options);

  absl::Status MakeShard(const Roster& roster);
  absl::Status Begin();
  absl::Status OnPush(Lane& lane, const proto::FrameHeader& header, Payload payload);
  absl::Status OnParameters(Lane& lane, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnWindows(const Lane& lane, const Payload& payload);
  absl::Status OnShard(const Lane& lane, const proto::FrameHeader& header);
  absl::Status OnSettle(const Lane& lane);
  absl::Status OnStateRequest(const Lane& lane);
  absl::Status OnState(const Lane& lane, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnTrace(const Lane& lane, const proto::FrameHeader& header);
  absl::Status TakeCredit(int rank);

  void OnFolded(int rank) override;
  void OnResult(ChunkId id, int64_t step, std::shared_ptr<LentBuffer> values) override;
  void OnSquares(int64_t step, std::vector<double> squares) override;
  void OnApplied(int rank) override { OnFolded(rank); }
  void OnAnswer(ChunkId id, const ChunkClocks::Answer& answer,
                const std::shared_ptr<LentBuffer>& values) override;
  void OnDeferred(ChunkId id, const ChunkClocks::Answer& answer) override;
  void OnFinal(ChunkId id, int rank, const std::shared_ptr<LentBuffer>& values) override;

  void SendAnswer(int rank, proto::FrameHeader header, const std::shared_ptr<LentBuffer>& values);
  void SendValues(int rank, size_t connection, proto::FrameHeader header,
                  const std::shared_ptr<LentBuffer>& values);
  void Send(int rank, size_t connection, OutgoingFrame frame) const {
    lanes_[rank][connection].stream->Send(std::move(frame));
  }

  const ShardRouterOptions options_;
  const proto::Terms terms_;
  const bool keeps_parameters_;  // alone: results are notices without payload
  const uint32_t credit_batch_;
  const int64_t shard_bytes_;
  const ServerPushOrder order_;
  std::string welcome_;                      // the payload of the answer to HELLO on connection 0
  std::shared_ptr<TraceRecorder> recorder_;  // null: nothing is recorded
  std::vector<std::vector<Lane>> lanes_;     // by rank and connection
  std::vector<std::atomic<int>> on_their_way_;  // by rank: pushed, not credited
  std::vector<std::atomic<uint64_t>> folded_;   // by rank: chunks, ever
  std::atomic<size_t> results_{0};              // sent to all; spreads them over connections
  std::vector<std::atomic<uint32_t>> answers_;  // by rank, under ssp and asp: sent; likewise
  std::atomic<int64_t> tx_bytes_{0}, rx_bytes_{0}, tx_messages_{0}, rx_messages_{0};
  std::atomic<int64_t> step_tx_bytes_{0}, step_rx_bytes_{0};
  std::unique_ptr<Shard> shard_;  // last: its threads use the above
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SHARD_ROUTER_H_
