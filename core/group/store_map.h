// What a rendezvous store does, without threads and without a network: the map behind every
// KeyValueStore.

#ifndef GRADSYNC_CORE_GROUP_STORE_MAP_H_
#define GRADSYNC_CORE_GROUP_STORE_MAP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace gradsync {

// Nothing here waits: who has to wait leaves a callback, which costs some bytes and no thread. A
// callback runs exactly once, on the thread of the call that completes it (which may be the very
// call that left it), with no lock held.
//
// Who keeps the time calls Expire(). Thread-safe. Callbacks that are still waiting when the map is
// destroyed never run: Close() first.
class StoreMap {
 public:
  // Names a waiting callback; never 0.
  using Ticket = uint64_t;
  // Values are shared, not copied, with whoever waits for them.
  using Value = std::shared_ptr<const std::string>;
  using Values = std::shared_ptr<const std::vector<std::string>>;
  using OnValue = absl::AnyInvocable<void(absl::StatusOr<Value>) &&>;
  using OnValues = absl::AnyInvocable<void(absl::StatusOr<Values>) &&>;

  // `max_bytes`: of all values and parts. `obstacle`: asked when ranks have not come by a deadline,
  // says what keeps anybody from coming, as a message begins ("rank 0 ..."), or ""; neither blocks
  // nor uses the map.
  explicit StoreMap(size_t max_bytes = kMaxBytes, std::function<std::string()> obstacle = nullptr)
      : max_bytes_(max_bytes), obstacle_(std::move(obstacle)) {}
  StoreMap(const StoreMap&) = delete;
  StoreMap& operator=(const StoreMap&) = delete;

  // Far above what a job of the largest world keeps in its store.
  static constexpr size_t kMaxKeyBytes = 4096;
  static constexpr size_t kMaxKeys = size_t{1} << 20;
  static constexpr size_t kMaxValueBytes = size_t{64} << 20;
  static constexpr size_t kMaxBytes = size_t{1} << 30;
  static constexpr size_t kMaxWaits = size_t{1} << 20;
  static constexpr size_t kMaxFailures = 1024;

  // As in KeyValueStore. Errors: that of Close(); INVALID_ARGUMENT for a key or a value that is too
  // long; RESOURCE_EXHAUSTED for too many, or too many bytes in all.
  absl::Status Set(absl::string_view key, std::string value);
  absl::StatusOr<Value> SetIfAbsent(absl::string_view key, std::string value);

  // Ends all waits for keys with the prefix, and those to come, as in KeyValueStore. Errors: that
  // of Close(); INVALID_ARGUMENT and RESOURCE_EXHAUSTED as Set().
  absl::StatusOr<Value> Fail(absl::string_view prefix, std::string reason);
  bool HasFailures();

  // `done` gets the value when the key is set. Errors: DEADLINE_EXCEEDED after Expire(), naming the
  // key; CANCELLED after Cancel(); ABORTED after Fail(); that of Close().
  Ticket Get(absl::string_view key, OnValue done);

  // `done` gets all parts when the last of `world_size` ranks has come; then the map forgets them,
  // and the key is as new. A rank that leaves before (Expire(), Cancel()) takes its part with it,
  // so either all ranks of an exchange get the parts or none does. Errors: those of Get(),
  // DEADLINE_EXCEEDED naming the missing ranks too; INVALID_ARGUMENT for a rank outside the world,
  // a rank that is waiting already, or a world size that is not that of the ranks that came before.
  Ticket AllGather(absl::string_view key, int rank, int world_size, std::string value,
                   OnValues done);

  // Ends a wait. Nothing happens when it has ended already, or is about to.
  void Expire(Ticket ticket) { Drop(ticket, /*expired=*/true); }
  void Cancel(Ticket ticket) { Drop(ticket, /*expired=*/false); }

  // Ends all waits, and fails all later calls, with `reason`, an error; but waits for keys that
  // have failed, and Fail() for them, say why still. The first call counts.
  void Close(absl::Status reason);

 private:
  struct Part {
    Ticket ticket = 0;
    std::string value;
    OnValues done;
  };
  struct Gathering {
    int world_size = 0;
    std::map<int, Part> parts;  // by rank
    std::set<int> expired;      // ranks that have come, and waited in vain
  };
  // Where a ticket's callback is.
  struct Place {
    std::string key;
    bool gathering = false;
    int rank = 0;
  };

  // Waits that the map knows no more; they end in the order in which they came.
  struct Waits {
    std::map<Ticket, OnValue> getters;
    std::map<Ticket, OnValues> parts;

    void End(const absl::Status& status);
  };

  // Whether a value may be set. Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  absl::Status CheckRoom(absl::string_view key, size_t value_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of what a key's value or part takes, and of one more wait.
  absl::Status CheckBytes(absl::string_view key, size_t before, size_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWaits() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What Fail() said of the key, or OK.
  absl::Status FailureOf(absl::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Waits TakeWaits(absl::string_view prefix) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Join(absl::string_view key, int rank, int world_size, Part* part,
                    std::vector<OnValues>* complete, Values* values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Store(absl::string_view key, Value value, std::map<Ticket, OnValue>* woken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Ticket ticket, bool expired);

  const size_t max_bytes_;
  const std::function<std::string()> obstacle_;
  Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  Ticket last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Value> values_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of values and parts
  absl::flat_hash_map<std::string, std::map<Ticket, OnValue>> getters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Gathering> gatherings_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Ticket, Place> places_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Value> failures_ ABSL_GUARDED_BY(mutex_);  // by prefix
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_STORE_MAP_H_
