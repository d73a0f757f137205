// The server's end of the conversation with its workers.
//
//   worker                                server
//   HELLO (payload: Hello), C streams  →
//                                      ←  HELLO, on each stream, when all workers of the run have
//                                         come and agree (payload with terms.windows: Host)
//   [terms.windows: WINDOWS (rank 0)   →  and all map each other's windows. Then parameters, pushes
//                                         and pulls go through these: core/shared_memory/window_owner.h]
//   PARAMETERS (rank 0)                →  kept, and sent on
//                                      ←  CREDIT, and PARAMETERS: empty to rank 0, with payload to
//                                         all others
//   PUSH, in PushOrder()               →  folded in the order of core/plan/stripes.h
//                                      ←  CREDIT {count}, as soon as half of the credit is folded
//                                      ←  PULL, when all workers' contributions are in it
//   [clipping at the owner: ← SQUARES after the last fold, NORM →, then all PULLs]
//   [servers alone keep parameters (BucketSlots): PULL has no payload; SHARD {bucket} →, and
//    ← SHARD, one per chunk of the bucket]
//   STATE_REQUEST                      →
//                                      ←  STATE, one per chunk and slot; STATE_END {step, count}
//   STATE (rank 0) ... STATE_END       →
//                                      ←  STATE_END
//   TRACE {count}                      →  with terms.trace_last_step
//                                      ←  TRACE (payload: ProcessTrace; with events if count is not 0)
//   GOODBYE                            →
//                                      ←  GOODBYE
//
// With terms.consistency ssp or asp (docs/consistency.md), steps go like this instead:
//
//   PUSH                               →  applied when it comes
//                                      ←  CREDIT, as above
//                                      ←  PULL {count: staleness}, if the consistency allows; else
//                                         DEFERRED, and PULL when it does
//   SETTLE                             →  others wait for this worker no more
//                                      ←  PARAMETERS, one per chunk, when all have settled or left
//
// A stream may also begin with HOST: the answer is HOST (payload: Host), and it ends.
//
// A worker may have `credit` chunks on their way to one server, which bounds what the server has to
// hold. It keeps to less by itself: results (and DEFERRED), not credit, say when it may go on
// (core/plan/flow_control.h). Chunk number q of its PushOrder() travels on connection q mod C, results
// on all connections in turns; everything but chunks, on connection 0. What a worker does against
// the rules ends the run: every worker hears FAILED with the reason. A worker that fails before
// all have the answer to HELLO, or learns that workers differ, says FAILED itself, with the reason.

#ifndef GRADSYNC_PS_SERVER_SERVICE_H_
#define GRADSYNC_PS_SERVER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/links/frame_stream.h"
#include "ps_server/async_shard.h"
#include "ps_server/parameter_shard.h"
#include "ps_server/roster.h"
#include "ps_server/run_member.h"
#include "ps_server/server_event.h"
#include "ps_server/shard.h"
#include "ps_server/step_progress.h"

namespace gradsync {

// What a service asks of those who come.
struct ServiceLimits {
  int64_t max_memory = std::numeric_limits<int64_t>::max();   // see Roster
  int64_t max_message = std::numeric_limits<int64_t>::max();  // bytes; likewise
  std::string key;  // of the job; empty: that of the first worker whose hello is admitted, if any
  bool proof = false;  // a stream that does not say which run it is of is refused
  Credentials credentials = InsecureCredentials();  // for the run's store
};

// Serves one run and ends with it. Thread-safe. Must outlive the streams that it accepted.
class Service : private ShardEvents, private AsyncShardEvents {
 public:
  // See Roster for `run_id`. `timeout`: what windows take to connect, and how long a process that
  // shares memory, or whom others wait for after they have settled, may be silent. `sink` hears
  // what happens under ssp and asp; may be empty.
  Service(std::string run_id, int attempt, absl::Duration timeout, ServerEventSink sink = {},
          ServiceLimits limits = {});
  ~Service() override;

  // Before the first stream: once a worker has said where the run's store is, a thread makes this
  // server a member of the run (ps_server/run_member.h), unless JoinRun() has, and tries again until
  // it reaches the store. Not the thread of Wait(): then nobody would miss a server of which that
  // one hangs. By default, and for an infinite time, the server is no member.
  void WatchRun(absl::Duration failure_timeout, StoreConnector connect = nullptr);

  // This server is number `server` of the run, whose id was given and whose store is at `store`,
  // "host:port": a member of it from here on. Waits for the store, for the failure timeout at most.
  // Errors: those of RunMember::Create().
  absl::Status JoinRun(const std::string& store, int server);

  // A StreamAcceptor.
  std::shared_ptr<FrameSink> Accept(std::shared_ptr<FrameStream> stream);

  // Blocks until the run has ended: OK after all workers said goodbye, otherwise why it failed.
  // Fails the run with DEADLINE_EXCEEDED if not all workers have come by `deadline`, which is
  // `arrival` after the server began: the message has that. Then waits a moment for the streams to
  // close, so that the last words are heard.
  absl::Status Wait(Deadline deadline, absl::Duration arrival);

  // Ends the run for all workers. The first call counts.
  void Fail(absl::Status status);

  // Asks the workers to stop after a step that they agree on, because the server at `address` was
  // told to end by `signal`. Waits for the run's store, for some seconds at most. Errors:
  // FAILED_PRECONDITION when not all workers have come, or none has said where the store is; those
  // of RunMember::AskToDrain().
  absl::Status Drain(int signal, absl::string_view address);

  ServerStats stats() const;

 private:
  class Session;
  struct Group;

  // Notes why the run ends. False if it has ended before.
  bool End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // After End(): tells everybody who said hello.
  void TellMembers(const absl::Status& status);

  // Whether the stream belongs to the run, as far as it says and this service knows.
  absl::Status CheckProof(const StreamProof& proof) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Ends streams that have been guests for too long, and the run if a member has finished without
  // goodbye.
  void EndOverdue();

  // Called by sessions, for each in order.
  void OnFrame(Session& session, const proto::FrameHeader& header, Payload payload);
  void OnPeerFinished(Session& session);
  void OnClosed(Session& session, const absl::Status& status);

  absl::Status OnHello(Session& session, const Payload& payload);
  const Roster& CompleteRoster() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  absl::Status StartGroup();
  absl::StatusOr<std::unique_ptr<Shard>> MakeShard(const Roster& roster);
  absl::Status Dispatch(Session& session, const proto::FrameHeader& header, Payload payload);
  absl::Status OnPush(Session& session, const proto::FrameHeader& header, Payload payload);
  absl::Status OnParameters(Session& session, const proto::FrameHeader& header,
                            const Payload& payload);
  absl::Status OnHost(Session& session);
  absl::Status OnWindows(Session& session, const Payload& payload);
  absl::Status OnShard(Session& session, const proto::FrameHeader& header);
  absl::Status OnSettle(Session& session);
  absl::Status OnStateRequest(Session& session);
  absl::Status OnState(Session& session, const proto::FrameHeader& header, const Payload& payload);
  absl::Status OnTrace(Session& session, const proto::FrameHeader& header);
  absl::Status OnGoodbye(Session& session);
  void SendAnswer(int rank, proto::FrameHeader header, const std::shared_ptr<LentBuffer>& values);
  absl::Status TakeCredit(int rank);
  std::string Name(int rank) const;
  absl::Status LostStream(int rank, const absl::Status& status) const;
  void EndIfSilent();
  void SeekMembership();
  void JoinMembershipThread();
  // Whether a run is under way whose store is known.
  bool KnowsRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayBecomeMember() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the run that it knows.
  RunMemberOptions RunOptions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BecomeMember();
  void LeaveRun(const absl::Status& status);
  void Lost(absl::Status status);

  void OnFolded(int rank) override;
  void OnResult(ChunkId id, int64_t step, std::shared_ptr<LentBuffer> values) override;
  void OnSquares(int64_t step, std::vector<double> squares) override;
  void OnApplied(int rank) override { OnFolded(rank); }
  void OnAnswer(ChunkId id, const ChunkClocks::Answer& answer,
                const std::shared_ptr<LentBuffer>& values) override;
  void OnDeferred(ChunkId id, const ChunkClocks::Answer& answer) override;
  void OnFinal(ChunkId id, int rank, const std::shared_ptr<LentBuffer>& values) override;

  void SendValues(int rank, size_t connection, proto::FrameHeader header,
                  const std::shared_ptr<LentBuffer>& values);

  const absl::Duration timeout_;
  absl::Duration failure_timeout_ = absl::InfiniteDuration();
  StoreConnector connect_store_;
  const ServerEventSink sink_;
  const bool proof_required_;
  const Credentials credentials_;
  const HelloLimits hello_limits_;
  Mutex hello_mutex_;  // held while a hello is read and what it completes is made; before mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  Roster roster_ ABSL_GUARDED_BY(mutex_);
  std::string key_ ABSL_GUARDED_BY(mutex_);
  Guests guests_ ABSL_GUARDED_BY(mutex_);
  // Members that have finished without goodbye, and when.
  std::vector<std::pair<const Session*, MonotonicTime>> finished_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Session>> members_ ABSL_GUARDED_BY(mutex_);  // Session::member
  // As JoinRun() says it, or else the first hello.
  std::string store_address_ ABSL_GUARDED_BY(mutex_);
  absl::optional<int> number_ ABSL_GUARDED_BY(mutex_);  // among all servers of the job
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;         // BecomeMember() is at it, or has done it
  Deadline next_attempt_ ABSL_GUARDED_BY(mutex_) = Deadline::At(MonotonicTime::InfinitePast());
  std::shared_ptr<RunMember> run_ ABSL_GUARDED_BY(mutex_);
  int goodbyes_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;        // members whose stream is not closed
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // StartGroup() is over
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // the destructor
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  // Of Wait() alone.
  MonotonicTime looked_;  // EndIfSilent(), the last time
  absl::optional<PatientDeadline>
      silence_;  // of all who are waited for, at each look since it began

  const std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();

  // Set once, when all have come; then constant but for what is thread-safe itself.
  std::unique_ptr<Group> group_storage_;
  std::atomic<Group*> group_{nullptr};

  std::atomic<int64_t> tx_bytes_{0}, rx_bytes_{0}, tx_messages_{0}, rx_messages_{0};
  std::atomic<int64_t> step_tx_bytes_{0}, step_rx_bytes_{0};

  Mutex membership_mutex_;                                // several may wait for the run's end
  Thread membership_ ABSL_GUARDED_BY(membership_mutex_);  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVICE_H_
