#ifndef GRADSYNC_PS_SERVER_RUN_MEMBER_H_
#define GRADSYNC_PS_SERVER_RUN_MEMBER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/group/drain.h"
#include "core/group/group_error.h"
#include "core/group/grpc_store.h"
#include "core/group/heartbeat.h"
#include "core/group/key_value_store.h"
#include "core/group/store_run.h"

namespace gradsync {

// Reaches the store of a run, as ConnectStore() does by default.
using StoreConnector = std::function<absl::StatusOr<std::shared_ptr<ConnectedStore>>(
    const std::string& address, Deadline deadline, const std::string& key)>;

struct RunMemberOptions {
  std::string store;  // host:port of the run's store, as a worker's hello says it
  std::string run_id;
  int attempt = 0;
  int server = 0;   // its number
  std::string key;  // the job's, where it has one
  Credentials credentials = InsecureCredentials();
  StoreConnector connect;  // null: over gRPC
  absl::Duration failure_timeout = absl::Seconds(10);
  absl::Duration patience = absl::InfiniteDuration();  // see Create()
  std::shared_ptr<Activity> activity;
  // The run has failed: for what the store says, or because rank 0, which holds the store, is lost.
  // Called once, on another thread, which must not destroy the member.
  std::function<void(absl::Status)> on_failure;
};

// A server among the members of its run: it gives signs of life to the run's store, and takes part
// in the group's failure (core/group/group_error.h), so that it says what all others say.
// Thread-safe.
class RunMember {
 public:
  // Connects to the store and gives the first sign of life, for at most half of the failure timeout
  // each, and no longer than `patience`. Errors: those of ConnectStore() and KeyValueStore.
  static absl::StatusOr<std::unique_ptr<RunMember>> Create(const RunMemberOptions& options);

  // Asks the workers of the run to stop after a step that they agree on (core/group/drain.h), which
  // need not have a member of this server. Waits for the store, for five seconds at most. Errors:
  // those of ConnectStore() and AskToDrain().
  static absl::Status AskToDrain(const RunMemberOptions& options, const DrainRequest& request);

  // `status` names a process that this server has lost. Tells the group, unless it has failed
  // already: a worker that has heard why hangs up. on_failure follows, with what failed first.
  void Report(absl::Status status) { group_error_->Report(std::move(status)); }

  // Who of the run is not in its store (core/group/store_run.h); may be "".
  std::string DescribeMissing() const { return gradsync::DescribeMissing(*store_); }

  // In good order: from here on nobody misses this server, and it misses nobody.
  void Leave();

 private:
  RunMember() = default;

  std::shared_ptr<KeyValueStore> store_;
  std::unique_ptr<GroupError> group_error_;
  std::unique_ptr<KeyValueStore::Watcher> presence_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_RUN_MEMBER_H_
