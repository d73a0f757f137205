#ifndef GRADSYNC_CORE_GROUP_WATCHDOG_H_
#define GRADSYNC_CORE_GROUP_WATCHDOG_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/group/key_value_store.h"
#include "core/group/liveness.h"

namespace gradsync {

struct WatchdogOptions {
  // Of this process, so that asking it costs nothing and never waits.
  std::shared_ptr<KeyValueStore> store;
  std::string prefix;  // of the group's keys, WorkerGroup::Key("")
  int world_size = 1;
  absl::Duration failure_timeout = absl::Seconds(10);
  // What keeps anybody new from the store just now, as a message begins ("rank 0 has ..."), or "".
  // Null: nothing ever does. Does not block.
  std::function<std::string()> obstacle;
};

// Reads the beats of all members of a job (core/group/heartbeat.h) where its store is, has them
// judged (core/group/liveness.h), and makes the first verdict the failure of the group, which ends
// every wait for its keys (KeyValueStore::Fail()). Whoever attends to the store (GoneKey()) and is
// gone without having left is lost at once. Where a rank has waited in vain (InVainKey()), somebody
// is blamed sooner. Where a rank has not come and an obstacle has lasted for the failure timeout,
// that is the failure, since the rank may be there. One for a group, in rank 0's process; that this
// one stops is noticed by the heartbeats of all others.
//
// Thread-safe. Has a thread of its own, which wakes every BeatInterval().
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The next server of the job, from number 0 on, at `address`, "host:port", as verdicts call it.
  void AddServer(absl::string_view address);

 private:
  struct Watched {
    std::string key;
    int member;
  };

  void Run();
  // What has kept a rank from coming for the failure timeout, if anything has.
  absl::optional<std::string> Obstacle(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WatchdogOptions options_;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  Liveness liveness_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  int servers_ ABSL_GUARDED_BY(mutex_) = 0;
  int ranks_met_ ABSL_GUARDED_BY(mutex_) = 0;  // whose beats were read at the last look
  absl::optional<MonotonicTime> obstructed_ ABSL_GUARDED_BY(mutex_);  // since when
  Thread thread_;                                                     // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_WATCHDOG_H_
