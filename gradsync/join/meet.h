// How the processes of a job find each other: rank 0 holds a key-value store, and all others connect
// to it.

#ifndef GRADSYNC_GRADSYNC_JOIN_MEET_H_
#define GRADSYNC_GRADSYNC_JOIN_MEET_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/credentials.h"
#include "core/base/grpc_health.h"
#include "core/base/trace_recorder.h"
#include "core/group/grpc_store.h"
#include "core/group/heartbeat.h"
#include "core/group/watchdog.h"
#include "core/group/worker_group.h"

namespace gradsync {

struct MeetOptions {
  int rank = 0;
  int world_size = 1;
  std::string master;          // host:port of the store; port 0: any. May be empty for a rank alone
  std::string interface;       // of this host's network; empty: that of the route to master
  std::string run_id = "job";  // the same for all processes of the job
  int attempt = 0;             // counts restarts of the job
  int servers = -1;            // parameter servers that may come to the store; -1: any number
  absl::Duration timeout = absl::Seconds(60);  // for each wait for another process
  // A process of the job that gives no sign of life for longer is lost, and one that is at work and
  // does nothing for longer is stuck (core/group/liveness.h): the job ends and names it. No longer
  // than FailureTimeout() allows with `timeout`; infinite: nobody is watched.
  absl::Duration failure_timeout = absl::Seconds(10);
  // What this process counts, if it does.
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  // Of all connections, with the job's secret if it has one. By default for a network that is
  // trusted.
  Credentials credentials = InsecureCredentials();
  std::shared_ptr<TraceRecorder> recorder;  // of some steps; may be null
  std::shared_ptr<GrpcHealth> health;       // of the store that rank 0 holds; may be null

  // What a user should know while this process waits to be let in; may be empty.
  std::function<void(const std::string& text)> notice;

  // Called on rank 0 when it holds the store, before it waits for anybody, with the store's
  // host:port: what other ranks take for master where the port was 0. May be empty.
  std::function<absl::Status(const std::string& address)> on_store;
};

// A rank among the others. Movable; not thread-safe.
class Meeting {
 public:
  const WorkerGroup& group() const { return group_; }

  // The next server of the job, from number 0 on, at `address`, "host:port": rank 0 names it when it
  // is lost.
  void AddServer(absl::string_view address);

  // Nobody is watched any more, nor is this rank: for ranks that go on by themselves.
  void Unwatch();

  // The same, but that DEADLINE_EXCEEDED also says which flag ended the wait, and where rank 0's store
  // is. Looks the store's name up.
  absl::Status Explain(const absl::Status& status) const;

  // In good order: the store is rank 0's, so this waits there until the others have left too, for
  // as long as it may take to notice that one never will. A rank that has failed does not leave.
  // Errors: ABORTED with the culprit, on rank 0: a process of the job was lost before it had left.
  absl::Status Leave();

 private:
  friend absl::StatusOr<Meeting> Meet(const MeetOptions& options);

  // `connected`: group_.store where another process holds it; null where this one does.
  absl::Status Watch(const MeetOptions& options, const std::shared_ptr<ConnectedStore>& connected,
                     Deadline deadline);
  void StopBeating();
  absl::Status AwaitOthers();

  std::unique_ptr<GrpcStoreServer> server_;  // of rank 0; outlives whoever uses the store
  WorkerGroup group_;
  std::vector<std::string> listens_;                  // where the store of rank 0 does
  std::unique_ptr<Watchdog> watchdog_;                // of rank 0
  std::unique_ptr<KeyValueStore::Watcher> presence_;  // of all others
  std::unique_ptr<Heartbeat> heartbeat_;              // last: uses the store
};

// An on_store that writes the address and a newline to a file, whole or not at all; none for an
// empty path. Its errors: those of WriteFileAtomically().
std::function<absl::Status(const std::string& address)> WriteAddressTo(const std::string& path);

// Errors: INVALID_ARGUMENT naming the flag (--rank, --world_size, --master), what was expected and
// what came.
absl::Status CheckMeeting(const MeetOptions& options);

// Starts the store on rank 0, which says there which run it is of (core/group/store_run.h);
// connects to it on all others. A rank without a master has a store of its own, in memory. Does not
// wait for the other ranks, but for the master's name to be found (core/base/local_address.h).
// Blocks for at most options.timeout.
// Errors: those of CheckMeeting(), FindLocalAddress() and FindStoreAddresses(), CheckListener(),
// GrpcStoreServer::Start(), EnterStore(), on_store and, for the first sign of life,
// KeyValueStore::Set().
absl::StatusOr<Meeting> Meet(const MeetOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_MEET_H_
