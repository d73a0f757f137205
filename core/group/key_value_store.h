// The rendezvous store: how processes of one job find each other, agree, and tell of failures.

#ifndef GRADSYNC_CORE_GROUP_KEY_VALUE_STORE_H_
#define GRADSYNC_CORE_GROUP_KEY_VALUE_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"

namespace gradsync {

class StoreMap;

// A small map from keys to byte strings that lives in one process (rank 0's) and is reached from
// all. Values stay until the store ends. Thread-safe: any number of calls may be under way, and
// none holds up another.
//
// Errors, each method: UNAVAILABLE when the store cannot be reached or is lost, naming its address;
// DEADLINE_EXCEEDED, naming the key and, for AllGather, the missing ranks; UNAUTHENTICATED. Get,
// AllGather and Watch also: ABORTED with the reason alone, after Fail().
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // Replaces what is there.
  virtual absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) = 0;

  // Sets the key unless it is set. Returns the value that is there afterwards: the first one wins.
  virtual absl::StatusOr<std::string> SetIfAbsent(absl::string_view key, absl::string_view value,
                                                  Deadline deadline) = 0;

  // Waits until the key is set.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) = 0;

  // An all-gather through the store: gives `value` as `rank`'s part, waits until all `world_size`
  // ranks gave theirs under `key`, and returns them in rank order. The store forgets the parts when
  // all ranks are there, so a key that is used again names a new exchange: use each key once, or a
  // rank that lags may meet the wrong one. A rank that gives up takes its part back, so none of the
  // others gets the parts either. Values set under the same key are another thing. INVALID_ARGUMENT
  // when a rank comes while it waits already, is outside the world, or world sizes differ.
  virtual absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank,
                                                             int world_size,
                                                             absl::string_view value,
                                                             Deadline deadline) = 0;

  // Gives up a part of the map: whoever waits for a key that begins with `prefix`, now or later,
  // gets ABORTED with `reason`. Values that are set can still be read. So a group whose keys have a
  // prefix of their own ends its waits everywhere at once when one of its processes fails. Returns
  // the reason in force afterwards: the first one for this prefix wins. It is a message of some
  // lines at most: over the network it travels among a reply's headers.
  virtual absl::StatusOr<std::string> Fail(absl::string_view prefix, absl::string_view reason,
                                           Deadline deadline) = 0;

  // A pending watch. Destroying it ends the watch; the callback does not run after the destructor
  // returned. Must not be destroyed from inside its callback.
  class Watcher {
   public:
    virtual ~Watcher() = default;
  };

  // Calls `callback` once, on another thread, with the value as soon as the key is set, with
  // ABORTED when Fail() ends the wait, or with UNAVAILABLE when the store is lost.
  virtual std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) = 0;
};

// A store that lives in this process and is shared by its threads: for tests in which a rank is a
// thread, and for jobs of one worker. Never UNAVAILABLE. Its watchers may outlive it. Each watch
// that pends holds a thread. Deadlines do not pass while the process is stopped.
std::shared_ptr<KeyValueStore> NewInMemoryStore();

// Over a map that others use too, such as a store's that is served: without the network. UNAVAILABLE
// once the map is closed.
std::shared_ptr<KeyValueStore> NewInMemoryStore(std::shared_ptr<StoreMap> map);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_KEY_VALUE_STORE_H_
