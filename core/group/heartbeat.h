#ifndef GRADSYNC_CORE_GROUP_HEARTBEAT_H_
#define GRADSYNC_CORE_GROUP_HEARTBEAT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/group/key_value_store.h"
#include "core/group/liveness.h"

namespace gradsync {

// Where the beats of a member are, below a group's keys.
std::string RankBeatKey(absl::string_view prefix, int rank);
std::string ServerBeatKey(absl::string_view prefix, int server);

// What the member of a beat attends to (ConnectedStore::Attend()): set when it is gone.
std::string GoneKey(absl::string_view beat_key);

// Set by a rank that waited until its deadline and does not know for whom, below a group's keys: asks
// the watchdog to blame somebody, which it does within JudgePatience() if it can; that is no time where
// nobody is watched.
std::string InVainKey(absl::string_view prefix);
inline absl::Duration JudgePatience(absl::Duration failure_timeout) {
  if (failure_timeout == absl::InfiniteDuration()) return absl::ZeroDuration();
  return 3 * BeatInterval(failure_timeout);
}

struct HeartbeatOptions {
  std::shared_ptr<KeyValueStore> store;
  std::string key;                     // one of the above
  std::shared_ptr<Activity> activity;  // never null
  absl::Duration failure_timeout = absl::Seconds(10);
  // Nothing was heard of the store for the failure timeout. Called once, on a thread of the
  // heartbeat, which must not destroy the heartbeat. No time counts in which this process did not
  // run. May be empty where this process holds the store.
  std::function<void()> on_silence;
};

// Tells a job's store that this process lives, and how far it is, every BeatInterval(), from a
// thread of its own; and notices when nobody answers. core/group/watchdog.h reads what it tells.
//
// Thread-safe. After on_silence nothing more is told.
class Heartbeat {
 public:
  // Gives the first sign of life itself, by `deadline`: only who has given one is missed, and a
  // thread's may come late on a busy machine. Errors: those of KeyValueStore::Set().
  static absl::StatusOr<std::unique_ptr<Heartbeat>> Start(HeartbeatOptions options,
                                                          Deadline deadline);

  // Just stops, as a member that fails does. Waits for an answer that is under way, for half of the
  // failure timeout at most.
  ~Heartbeat();

  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // In good order: tells it, so that nobody misses this member. Waits as the destructor does.
  void Leave();

 private:
  explicit Heartbeat(HeartbeatOptions options);

  void Run();
  bool Send(bool left, Deadline deadline);
  void Stop();

  const HeartbeatOptions options_;
  // Of the thread; then of Leave().
  int64_t number_ = 0;
  int stopped_thread_ = 0;  // of the last beat
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_HEARTBEAT_H_
