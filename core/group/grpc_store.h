// The rendezvous store over gRPC: rank 0 serves it, everybody else connects. See key_value_store.h
// for what it does and proto/rendezvous.proto for what travels.

#ifndef GRADSYNC_CORE_GROUP_GRPC_STORE_H_
#define GRADSYNC_CORE_GROUP_GRPC_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/grpc_health.h"
#include "core/group/key_value_store.h"
#include "core/group/store_door.h"

namespace gradsync {

struct StoreServerTimes {
  // A connection on which there has been no call for about as long, or up to twice as long, is
  // closed: members attend to the store, and a client connects again for its next call.
  absl::Duration idle = absl::Minutes(2);
  // How long a server whose job has failed outlasts its end for members that attend and do not wait
  // just then: when they ask next they hear why, and would take its end for the cause otherwise.
  absl::Duration hearing = absl::Milliseconds(250);
};

// Serves one store until it is destroyed. A call that waits costs the server some bytes and no
// thread, so calls never hold up each other. A client whose connection is lost (at the latest after
// 40 s of silence) leaves the exchanges that it waits in. Thread-safe.
class GrpcStoreServer {
 public:
  // Listens at each of `addresses`, "host:port", and nowhere else; with one address, port 0 takes any
  // free one.
  // Errors: UNAVAILABLE, naming the address and, where it can be seen, the process that has the port,
  // when that is taken or the address is not one of this host's; INVALID_ARGUMENT when it is no
  // "host:port", and those of CheckListener().
  // `door` says who may use the store; by default everybody. `health`, if there is one, answers who
  // asks whether it serves.
  static absl::StatusOr<std::unique_ptr<GrpcStoreServer>> Start(
      const std::vector<std::string>& addresses, const Credentials& credentials,
      StoreDoorOptions door = {}, std::shared_ptr<GrpcHealth> health = nullptr,
      StoreServerTimes times = {});
  static absl::StatusOr<std::unique_ptr<GrpcStoreServer>> Start(
      const std::string& address, const Credentials& credentials, StoreDoorOptions door = {},
      std::shared_ptr<GrpcHealth> health = nullptr, StoreServerTimes times = {}) {
    return Start(std::vector<std::string>{address}, credentials, std::move(door), std::move(health),
                 times);
  }

  // Fails the calls and watches of all clients with UNAVAILABLE. Blocks until the answers are on
  // their way, at most half a second: who is alive and connected then hears them.
  virtual ~GrpcStoreServer() = default;

  // What keeps anybody new from a store of this process just now, as a message begins
  // ("rank 0 has no file descriptors left, ..."), or "".
  static std::string WhyNobodyCanCome();

  virtual int port() const = 0;
  virtual int attending() const = 0;  // members, by ConnectedStore::Attend()

  // The same store, for this process alone: without the network. Outlives the server, closed.
  virtual std::shared_ptr<KeyValueStore> local() const = 0;
};

// A store that another process serves, maybe.
class ConnectedStore : public KeyValueStore {
 public:
  // Gives the store up: all calls and watches of this process, those to come too, end with
  // `reason`, an error, at once. For when who serves it is known to be gone though its host still
  // holds the connection. The first call counts. Thread-safe; does not wait.
  virtual void Abandon(absl::Status reason) = 0;

  // Shows the store, for as long as the watcher lives, that this process does: when the process is
  // gone, whatever ended it, or the watcher is, the store sets `key`, to "", at once. Does not wait;
  // nobody hears when the store is gone.
  virtual std::unique_ptr<Watcher> Attend(absl::string_view key) = 0;

  // "host:port", as ConnectStore() was told.
  virtual const std::string& address() const = 0;
};

// What a process says that has not heard of the store at `address` for `failure_timeout`:
// UNAVAILABLE, with rank 0, whose process holds the store, as culprit.
absl::Status LostStoreHolder(absl::string_view address, absl::Duration failure_timeout);

// Waits until a store is served at `address`, "host:port", and returns it. Methods of the store
// block the calling thread only. It has one thread, which ends calls at their deadlines; a watch
// that pends holds another. Where a deadline has passed already the store is still asked, without
// waiting. A server that has stopped (a host that froze) is noticed after 40 s of silence at the
// latest, as UNAVAILABLE; until then deadlines are overstepped by up to two seconds, because the
// server keeps them.
//
// The store and its watchers may be destroyed in any order.
// Errors: DEADLINE_EXCEEDED, naming the address and why the last attempt to connect failed;
// INVALID_ARGUMENT when the address is no "host:port".
// `key`: the job's, where the store asks for one; a store that is another job's answers each call
// with PERMISSION_DENIED.
absl::StatusOr<std::shared_ptr<ConnectedStore>> ConnectStore(const std::string& address,
                                                             const Credentials& credentials,
                                                             Deadline deadline,
                                                             const std::string& key = "");

// As who a process comes to a store; see StoreDoor.
struct StorePass {
  std::string run_id;  // of a server: may be empty
  int attempt = 0;     // of a server: may be -1
  int rank = 0;
  bool server = false;
  std::string key;  // of the job, once the process has come
};

// ConnectStore() for a process that takes its place in the job there, and learns the job's key. Where
// the job has a secret, `credentials` must have it.
// Errors: also those of StoreDoor::Join(), and FAILED_PRECONDITION where something else is served
// there; whoever gets one is no member of the job and should leave it alone. LostStoreHolder() when
// its host takes connections and nobody has answered for `failure_timeout`.
// `notice`, unless null, is called on this thread where nobody has answered for ten seconds, with
// what a user should know.
absl::StatusOr<std::shared_ptr<ConnectedStore>> EnterStore(
    const std::string& address, const Credentials& credentials, StorePass* pass, Deadline deadline,
    absl::Duration failure_timeout = absl::InfiniteDuration(),
    const std::function<void(const std::string&)>& notice = nullptr);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_GRPC_STORE_H_
