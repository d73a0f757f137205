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
// With terms.consistency ssp or asp (docs/use/consistency.md), steps go like this instead:
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
// (core/plan/shard_map.h). Chunk number q of its PushOrder() travels on connection q mod C, results
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
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "ps_server/admission.h"
#include "ps_server/membership.h"
#include "ps_server/run_member.h"
#include "ps_server/server_event.h"
#include "ps_server/shard.h"
#include "ps_server/shard_router.h"

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
class Service {
 public:
  // See Roster for `run_id`. `timeout`: what windows take to connect, and how long a process that
  // shares memory, or whom others wait for after they have settled, may be silent. `sink` hears
  // what happens under ssp and asp; may be empty.
  Service(std::string run_id, int attempt, absl::Duration timeout, ServerEventSink sink = {},
          ServiceLimits limits = {});
  ~Service();

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

  // Notes why the run ends. False if it has ended before.
  bool End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // After End(): tells everybody who said hello.
  void TellMembers(const absl::Status& status);

  // Ends streams that have been guests for too long, and the run if a member has finished without
  // goodbye.
  void EndOverdue();

  // Ends the run if a worker for which others wait does nothing.
  void EndIfSilent();

  // Called by sessions, for each in order.
  void OnFrame(Session& session, const proto::FrameHeader& header, Payload payload);
  void OnPeerFinished(Session& session);
  void OnClosed(Session& session, const absl::Status& status);

  void OnMembersFrame(Session& session, const proto::FrameHeader& header, Payload payload);
  absl::Status OnHello(Session& session, const Payload& payload);
  absl::Status Begin();
  absl::Status Dispatch(Session& session, const proto::FrameHeader& header, Payload payload);
  void OnGoodbye(Session& session);

  // What the end of a stream of `rank` without a goodbye means.
  absl::Status LostStream(int rank, const absl::Status& status) const;

  // Ends the run, unless the group knows better why a worker is gone.
  void Lost(absl::Status status);

  ShardRouter* router() const { return router_.load(std::memory_order_acquire); }

  const absl::Duration timeout_;
  const ServerEventSink sink_;
  const std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
  Admission admission_;
  mutable Mutex mutex_;  // before those of admission_ and membership_
  CondVar changed_;      // also of what Admission has
  // Members that have finished without goodbye, and when.
  std::vector<std::pair<const Session*, MonotonicTime>> finished_ ABSL_GUARDED_BY(mutex_);
  int goodbyes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // Begin() is over
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  // Of Wait() alone.
  MonotonicTime looked_;  // EndIfSilent(), the last time
  absl::optional<PatientDeadline>
      silence_;  // of all who are waited for, at each look since it began

  // Set once, when all have come; then constant but for what is thread-safe itself.
  std::unique_ptr<ShardRouter> router_storage_;
  std::atomic<ShardRouter*> router_{nullptr};

  Membership membership_;  // last: its threads use all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVICE_H_
