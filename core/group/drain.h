// How a job ends before its last step, in good order: all ranks stop after the same step, whichever
// process was asked to end.

#ifndef GRADSYNC_CORE_GROUP_DRAIN_H_
#define GRADSYNC_CORE_GROUP_DRAIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"

namespace gradsync {

// Who was asked to end, and by what.
struct DrainRequest {
  int signal = 0;   // SIGTERM, SIGINT
  std::string who;  // "rank 1", "server 0 (10.0.0.7:4000)"

  // "SIGTERM to rank 1".
  std::string ToString() const;
};

// Asks all ranks of the run whose group this is to stop. The first request counts. Waits for the
// store until `deadline`. Returns the request in force. Errors: those of KeyValueStore.
absl::StatusOr<DrainRequest> AskToDrain(const WorkerGroup& group, const DrainRequest& request,
                                        Deadline deadline);

// A rank's part of the agreement on where to stop. Ranks may be in different steps when one of them
// is asked: under bsp a step apart, otherwise any number. So each that hears of it tells the store
// which step it has begun, and begins no other until it knows the largest of these, after which all
// stop. Nobody waits for a rank that waits for others inside a step: a thread of this object tells
// for it, and what the others have begun, they finish.
//
// Ask() and StopBefore() are for one thread. Until somebody asks, a step costs one free lock, and the
// store has one watch more.
class Drain {
 public:
  // `group`: all ranks of the job; with a null store this rank is alone, and asks only itself.
  // `first_step`: the first that will be begun. `activity` may be null.
  Drain(WorkerGroup group, int64_t first_step, std::shared_ptr<Activity> activity);

  // Waits for a call to the store that is under way, for half a second at most.
  ~Drain();

  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // This rank was told to end by `signal`. Errors: those of KeyValueStore.
  absl::Status Ask(int signal);

  // Before each step, whose numbers go up by one: whether to stop instead of beginning it. Blocks
  // only once somebody has asked, until all ranks have said where they are, for at most the group's
  // timeout. Errors: DEADLINE_EXCEEDED when they do not; ABORTED and UNAVAILABLE when the group has
  // failed.
  absl::StatusOr<bool> StopBefore(int64_t step);

  // Why StopBefore() returned true.
  DrainRequest request() const;

 private:
  void OnRequest(absl::string_view text);
  void Agree(int64_t begun);
  absl::StatusOr<int64_t> LastStep(int64_t begun);
  absl::StatusOr<int64_t> Await(absl::string_view key);
  bool closing() const;

  const WorkerGroup group_;
  const std::shared_ptr<Activity> activity_;
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_);                         // the newest step
  absl::optional<DrainRequest> request_ ABSL_GUARDED_BY(mutex_);  // if somebody asked
  absl::optional<int64_t> last_step_ ABSL_GUARDED_BY(mutex_);     // that all have agreed on
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<KeyValueStore::Watcher> watcher_;
  std::thread thread_;  // runs from the request on
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_DRAIN_H_
