#ifndef GRADSYNC_GROUP_WATCHDOG_H_
#define GRADSYNC_GROUP_WATCHDOG_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "group/key_value_store.h"
#include "group/liveness.h"

namespace gradsync {

struct WatchdogOptions {
  // Of this process, so that asking it costs nothing and never waits.
  std::shared_ptr<KeyValueStore> store;
  std::string prefix;  // of the group's keys, WorkerGroup::Key("")
  int world_size = 1;
  absl::Duration failure_timeout = absl::Seconds(10);
};

// Reads the beats of all members of a job (group/heartbeat.h) where its store is, has them judged
// (group/liveness.h), and makes the first verdict the failure of the group, which ends every wait
// for its keys (KeyValueStore::Fail()). Whoever attends to the store (GoneKey()) and is gone without
// having left is lost at once. Where a rank has waited in vain (InVainKey()), somebody is blamed sooner. One for a group, in rank 0's process; that this one stops
// is noticed by the heartbeats of all others.
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

  const WatchdogOptions options_;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  Liveness liveness_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  int servers_ ABSL_GUARDED_BY(mutex_) = 0;
  Thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_GROUP_WATCHDOG_H_
