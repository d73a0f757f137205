#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_MESH_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_MESH_H_

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/shared_memory/unix_socket.h"
#include "core/shared_memory/window.h"

namespace gradsync {

struct WindowMeshOptions {
  struct Member {
    std::string name;    // for errors, e.g. "rank 3"
    bool linked = true;  // whether this member and that one map each other's window
    size_t bytes = 0;    // of its window
  };
  std::vector<Member> members;
  int self = 0;
  // What all members must agree on, e.g. run and plan; at most 1 KiB.
  std::string greeting;
  // Mapped by the others. Its first bytes are a WindowControl, as those of all windows.
  std::shared_ptr<Window> window;
  // A member that runs no instruction for longer than this counts as lost.
  absl::Duration silence = absl::Seconds(60);
  // A member is lost: UNAVAILABLE when its process ended, DEADLINE_EXCEEDED when it is silent, both
  // naming it and its process. Called once, on a thread of the mesh; must not destroy the mesh.
  std::function<void(absl::Status)> on_lost;
};

// Processes of one host (and, in tests, threads of one process) that map each other's windows. Each
// pair keeps a Unix socket, over which the windows' files pass, and whose end says that the process
// at the other end is gone. Nothing of it outlives the processes: neither memory nor names.
//
// Thread-safe.
class WindowMesh {
 public:
  // Begins to listen. Errors: those of UnixListener::Listen().
  static absl::StatusOr<std::unique_ptr<WindowMesh>> Create(WindowMeshOptions options);

  // Closes the connections; without Leave() the others take this member for lost.
  ~WindowMesh();

  // Where the others find this member: to be published to them.
  const std::string& address() const { return listener_.name(); }

  // Once. Waits until all linked members are connected and their windows mapped, each of which must
  // call this too. `addresses` by member; those of members that are not linked are not looked at.
  // Errors: DEADLINE_EXCEEDED naming the members that did not come; UNAVAILABLE naming the one that
  // is not there; PERMISSION_DENIED when another user's; FAILED_PRECONDITION when greetings differ;
  // INVALID_ARGUMENT when windows do not fit; CANCELLED; RESOURCE_EXHAUSTED, blaming nobody, when
  // this process has no file descriptors or no memory left.
  absl::Status Connect(const std::vector<std::string>& addresses, Deadline deadline);

  // The window of a linked member, or the own one; after Connect().
  const std::shared_ptr<Window>& window(int member) const { return windows_[member]; }

  // This member is about to leave in good order, and others may. Also while Connect() runs: those
  // that it still meets hear it then.
  void Leave();

  // Ends a Connect() that waits. Never blocks.
  void Cancel();

  // Ends the watch: on_lost is not called after this returned. The connections stay until the
  // destructor. Must not be called from on_lost.
  void Stop();

 private:
  explicit WindowMesh(WindowMeshOptions options, UnixListener listener, FileDescriptor cancel);

  absl::Status Dial(int member, const std::string& address, Deadline deadline);
  absl::Status AcceptOne(Deadline deadline);
  std::string Greeting() const;
  absl::StatusOr<int> CheckGreeting(absl::string_view bytes, const std::string& from) const;
  absl::Status Keep(int member, UnixSocket socket, FileDescriptor window);
  absl::Status NoConnection(int member, const absl::Status& why) const;
  void SayFarewell(int member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string MissingMembers() const;
  std::string Name(int member) const;

  void Watch();
  void Beat();
  void ReadFrom(int member);
  void Lost(absl::Status status);

  const WindowMeshOptions options_;
  UnixListener listener_;
  const FileDescriptor cancel_;  // an eventfd: readable from Cancel() on

  // Written by Connect() before the watch begins, then only read. The sockets under mutex_, since
  // Leave() may come meanwhile.
  std::vector<UnixSocket> sockets_;
  std::vector<std::shared_ptr<Window>> windows_;

  // Of the watching thread.
  struct Pulse {
    uint32_t heartbeat = 0;
    int missed = 0;
    bool left = false;
  };
  std::vector<Pulse> pulses_;
  std::vector<pollfd> polled_;  // with room for all, so that the watch allocates nothing
  std::vector<int> polled_members_;

  Mutex mutex_;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread watch_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_MESH_H_
