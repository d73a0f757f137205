// A worker's end of the conversation with its servers (ps_server/service.h), for one plan.

#ifndef GRADSYNC_PS_SERVER_CLIENT_PS_ENGINE_H_
#define GRADSYNC_PS_SERVER_CLIENT_PS_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/chunk_codec.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/trace_recorder.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/links/frame_stream.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/sync/chunk_encoder.h"
#include "core/sync/gradient_sync.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/client/norm_gather.h"
#include "ps_server/client/server_connection.h"
#include "ps_server/client/server_questions.h"

namespace gradsync {

// Resolves a handle when a number of things has happened. Shared between everything that makes one
// happen. Thread-safe, never blocks; but Restart() is for when nothing else is called.
class Countdown {
 public:
  // `what` and `driver` as in SyncPromiseSeries. Resolved, until the first Restart().
  explicit Countdown(const std::string& what, const std::weak_ptr<SyncDriver>& driver = {})
      : promises_(what, driver) {}

  // Resolved at once if there is nothing to wait for.
  Countdown(const std::string& what, int64_t count) : Countdown(what) { Restart(-1, count); }

  // The same for another step (-1: none); allocates nothing. What was counted down to before has
  // happened.
  void Restart(int64_t step, int64_t count) {
    left_ = count;
    promises_.Begin(step);
    if (count == 0) Resolve(absl::OkStatus());
  }

  SyncHandle handle() const { return promises_.current().handle(); }

  void Done() {
    if (--left_ == 0) Resolve(absl::OkStatus());
  }

  // Done() may go on being called.
  void Fail(absl::Status status) { Resolve(std::move(status)); }

 private:
  void Resolve(absl::Status status) {
    const SyncPromise promise = promises_.current();  // whoever is woken may restart
    promise.Resolve(std::move(status));
  }

  SyncPromiseSeries promises_;
  std::atomic<int64_t> left_{0};
};

// A bucket's memory. `owner` keeps it alive as long as a stream may read it.
struct ExchangedBucket {
  float* grad = nullptr;
  float* param = nullptr;
  std::shared_ptr<const void> owner;
};

// Moves chunks between buckets and servers. Knows neither tensors nor other workers: barriers are
// the caller's. Methods are called one at a time, except FailAll(), which is thread-safe; none
// blocks but Connect() and WaitClosed(). Returned handles resolve when their transfer is complete
// and no stream reads the buckets any more, or with what FailAll() is given.
//
// Kept alive by its streams; the caller ends them (Leave() or FailAll(), and Cancel() where servers
// do not answer) and then waits for them (WaitClosed()).
class PsEngine : public std::enable_shared_from_this<PsEngine> {
 public:
  struct Options {
    int rank = 0;
    std::string name;  // of this worker in messages, "rank 3" of the job
    UpdateSite update_site = UpdateSite::kWorker;
    Consistency consistency;
    std::vector<std::string> servers;         // addresses
    std::vector<int> numbers;                 // of each among all of the job's
    std::vector<std::string> names;           // and what it is called
    std::vector<int> connections;             // streams to each
    std::vector<int> leads;                   // and chunks on their way (core/plan/shard_map.h)
    std::shared_ptr<TraceRecorder> recorder;  // of some steps; may be null
    std::weak_ptr<SyncDriver> driver;         // of the link
    // A server, by its number, that the group has heard of, and that a connection does not reach for
    // `failure_timeout`, is cut off from here; others may yet have to be started.
    std::function<bool(int number)> is_member;
    absl::Duration failure_timeout = absl::InfiniteDuration();
  };

  // `on_error` hears what servers and streams report, on any thread, until WaitClosed(); it must
  // not block. It is expected to bring about FailAll().
  PsEngine(const Options& options, const Plan& plan, const ShardMap& shards,
           std::vector<ExchangedBucket> buckets, std::function<void(absl::Status)> on_error);

  // Opens all streams and says hello; `hello` lacks only what depends on server and connection.
  // Call once, first.
  absl::Status Connect(StreamLink& link, const proto::Hello& hello, Deadline deadline);

  // Resolves when all servers have answered the hello, which they do when all workers have come.
  SyncHandle Welcomed() const;

  // Once welcomed, with windows in the hello's terms: where each server's window is, and telling
  // all servers where everybody's is (rank 0).
  std::vector<std::string> ServerWindows() const;
  void SendWindows(const std::vector<std::string>& addresses);

  // Queues a bucket's chunks, compressed here and now if the plan says so.
  SyncHandle Launch(const StepOptions& step, int bucket);

  // Rank 0: sends `param` of all buckets to their owners, and resolves when they have it. Other
  // ranks: receives it. Of one bucket alone: all ranks transfer them in order, before the first
  // step.
  SyncHandle TransferParameters() {
    return TransferParameters(0, static_cast<int>(plan_.buckets().size()));
  }
  SyncHandle TransferBucket(int bucket) { return TransferParameters(bucket, bucket + 1); }

  // Where servers alone keep parameters: asks for those of a bucket, which are in its `param` when
  // the handle has resolved.
  SyncHandle Gather(int bucket);

  // Under ssp and asp, when the last step's handles have resolved: tells the servers that no step
  // comes, and receives the final parameters, which come when all workers have said so.
  SyncHandle Settle();

  // Asks all servers for their state, which is complete in `*state` when the handle has resolved.
  // Until ForgetExport() the streams may write to it.
  SyncHandle ExportState(OptimizerState* state);
  void ForgetExport();

  // Gives all servers their part of `state`, which is copied.
  SyncHandle ImportState(const OptimizerState& state);

  // With a recorder: asks all servers what they recorded, and for their clocks, and gives it to
  // the recorder. After the last step.
  SyncHandle FetchTraces();

  // Forgets what compression kept of earlier gradients. Between steps.
  void ForgetResiduals() { encoder_->Reset(); }

  // What it kept, and the same put back. Between steps.
  RankState ExportResiduals() const { return encoder_->Residuals(); }
  void ImportResiduals(const RankState& state) { encoder_->SetResiduals(state); }

  // Says goodbye to all servers. Resolves when all streams are closed.
  SyncHandle Leave();

  // Tells all servers why this worker leaves, ahead of chunks under way if `at_once`. They answer by
  // closing the streams (WaitClosed()).
  void LeaveWith(const absl::Status& error, bool at_once = false);

  // Fails what is pending and what comes, and ends all streams by LeaveWith(). The first call counts.
  void FailAll(const absl::Status& status);

  // Ends all streams, whether servers answer or not. The first call counts.
  void Cancel(const absl::Status& reason);

  // Blocks until no stream calls any more. False at the deadline.
  bool WaitClosed(Deadline deadline);

  // Names of the servers that have not answered the hello yet; for messages.
  std::string UnansweredServers() const;

  WireStats wire_stats() const;
  Staleness staleness() const;

 private:
  class Sink;
  // What a chunk that is being sent keeps alive, and what its release counts down. One for each
  // chunk, used again in every step, so that sending allocates nothing.
  struct Lending;
  struct Loan {
    std::shared_ptr<Lending> keep;
    std::shared_ptr<Countdown> countdown;
  };
  struct Lending {
    std::shared_ptr<const void> memory;
    std::shared_ptr<const void> encoder;
    std::vector<Loan> loans;  // by slot
  };
  struct Bucket {
    ExchangedBucket memory;
    std::shared_ptr<Lending> lending;
    std::vector<bool> awaited;             // by slot: a pull of the launched step
    std::vector<bool> deferred;            // by slot: the pull comes later (proto: DEFERRED)
    std::vector<bool> parameters_awaited;  // by slot: of the running transfer
    std::vector<bool> shards_awaited;      // by slot: of the running gather
    std::shared_ptr<Countdown> gather;     // that one
    int64_t step = 0;
    std::shared_ptr<Countdown> countdown;  // of the launched step
  };
  struct Server {
    std::unique_ptr<ServerConnection> connection;
    std::vector<ChunkId> order;  // PushOrder()
    std::vector<size_t> begin;   // by bucket: first in order; one more at the end
    std::atomic<int> unanswered{0};
    std::string window;        // address
    uint32_t pieces = 0;       // of exported state, received
    bool end_awaited = false;  // of exported or imported state
    ServerClock clock;         // with a recorder
  };

  // Callbacks of the streams; what a server said wrongly is an error. In ps_engine_receive.cc.
  absl::Status OnFrame(Server& server, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnChunk(Server& server, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnShard(Server& server, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnDeferred(Server& server, const proto::FrameHeader& header);
  absl::Status OnSquares(Server& server, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnState(Server& server, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnStateEnd(Server& server, const proto::FrameHeader& header);
  absl::Status OnTrace(Server& server, const Payload& payload);
  void OnClosed(Server& server, const absl::Status& status);
  absl::Status OpenStream(StreamLink& link, Server& server, Deadline deadline);

  // Strikes a chunk off what is awaited. Returns the countdown to tell, and where the chunk goes
  // (null: it is empty).
  struct Arrival {
    std::shared_ptr<Countdown> countdown;
    float* to = nullptr;
    bool is_result = false;  // of a push, and none was said to come later
  };
  ChunkForm FormOf(const proto::FrameHeader& header) const;  // of a chunk from a server
  absl::StatusOr<Arrival> Expect(const Server& server, const proto::FrameHeader& header);
  absl::Status NoteStaleness(const proto::FrameHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SyncHandle TransferParameters(int first, int end);
  int64_t AwaitParameters(int first, int end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Countdown> Begin(std::string what, int64_t count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueueChunk(Server& server, size_t number, proto::FrameHeader header,
                  absl::Span<const char> payload, const std::shared_ptr<Countdown>& countdown);
  static void Returned(void* loan);
  absl::Status CheckOwned(const Server& server, ChunkId id) const;
  void SendState(Server& server, const OptimizerState& state);
  ElementRange Range(ChunkId id) const;

  const Options options_;
  const Plan plan_;
  const ShardMap shards_;
  const std::function<void(absl::Status)> on_error_;
  Countdown welcome_;
  std::vector<std::unique_ptr<Server>> servers_;
  NormGather norms_;
  const std::shared_ptr<ChunkEncoder> encoder_;  // streams may read its memory after this object
  WireCounter received_;

  absl::Status failure() const;  // what FailAll() was given, or OK

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Bucket> buckets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Countdown>> pending_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Countdown> transfer_ ABSL_GUARDED_BY(mutex_);  // of parameters or state
  bool settling_ ABSL_GUARDED_BY(mutex_) = false;                // the transfer is Settle()'s
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;                    // launched, under ssp and asp
  int64_t step_staleness_ ABSL_GUARDED_BY(mutex_) = 0;           // of the last one
  Staleness past_staleness_ ABSL_GUARDED_BY(mutex_);             // of those before
  std::shared_ptr<Countdown> farewell_ ABSL_GUARDED_BY(mutex_);
  OptimizerState* exported_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);  // the first server whose stream ended too early
  int open_ ABSL_GUARDED_BY(mutex_) = 0;       // streams
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_PS_ENGINE_H_
