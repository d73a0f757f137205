// Who may use a rendezvous store: the processes of one run, each in a place of its own. What they
// have in common is the job's key (core/base/secret_proof.h).

#ifndef GRADSYNC_CORE_GROUP_STORE_DOOR_H_
#define GRADSYNC_CORE_GROUP_STORE_DOOR_H_

#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace gradsync {

struct StoreDoorOptions {
  std::string key;  // empty: anybody may come, and nothing below matters
  std::string run_id;
  int attempt = 0;
  int workers = 1;   // rank 0, which holds the store, among them
  int servers = -1;  // that may come; -1: any number
};

// Thread-safe.
class StoreDoor {
 public:
  struct Comer {
    std::string run_id;  // of a server: may be empty
    int attempt = 0;     // of a server: may be -1
    int rank = 0;
    bool server = false;
    std::string nonce;
  };

  explicit StoreDoor(StoreDoorOptions options) : options_(std::move(options)) {}

  // Gives the comer its place, and returns the key. A place is given once: whoever comes to it later
  // is a stranger, however alike (the same command started twice), and the job goes on without it.
  // Errors: FAILED_PRECONDITION for a process of another run; INVALID_ARGUMENT for a rank that the
  // run does not have; ALREADY_EXISTS when the place is taken; RESOURCE_EXHAUSTED for a server too many.
  absl::StatusOr<std::string> Join(const Comer& comer);

  // Whether a call that shows `key` may be answered. Errors: PERMISSION_DENIED.
  absl::Status Check(absl::string_view key) const;

  // Whether a failure may be published for keys with this prefix: that of the run, no shorter one.
  // Errors: PERMISSION_DENIED.
  absl::Status CheckPrefix(absl::string_view prefix) const;

 private:
  absl::Status CheckRun(const Comer& comer) const;

  const StoreDoorOptions options_;
  Mutex mutex_;
  std::map<int, std::string> workers_ ABSL_GUARDED_BY(mutex_);  // nonces by rank
  std::set<std::string> servers_ ABSL_GUARDED_BY(mutex_);       // nonces
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_STORE_DOOR_H_
