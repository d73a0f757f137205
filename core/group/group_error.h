// One failure for the whole group: the first.

#ifndef GRADSYNC_CORE_GROUP_GROUP_ERROR_H_
#define GRADSYNC_CORE_GROUP_GROUP_ERROR_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/group/worker_group.h"

namespace gradsync {

// The rank of a member that is no worker: a server. What it publishes are its own words, which
// begin with the culprit's name, and not that it failed itself.
constexpr int kNoRank = -1;

// Tells the group that this rank failed with `status`: every wait for one of the group's keys ends,
// on all ranks, with ABORTED and what was published. That begins with the culprit
// (core/base/errors.h): the one that `status` begins with, else this rank; or it is what was
// published before. A suspicion (core/base/errors.h) is published only if nobody else has failed
// within its patience. Who waited in vain, DEADLINE_EXCEEDED without a culprit, first asks the
// watchdog who is to blame. Waits for the store at most two seconds besides. Returns what this rank
// says of it from then on: `status`, as if it were certain, where the group says so or cannot be
// told; otherwise ABORTED and what was published.
absl::Status PublishFailure(const WorkerGroup& group, const absl::Status& status);

// How long that waits for a better reason than `status`, and GroupError too.
absl::Duration PatienceFor(const WorkerGroup& group, const absl::Status& status);

// Whether others are to blame for `status`, with which a process could not begin: they failed first,
// were lost or did not come in time. The next time they may come; what a process finds wrong itself,
// as flags, files and addresses, would be so again.
bool FailedByOthers(const absl::Status& status);

// Each rank has one. When a rank fails, it publishes that, and the first one to do so wins; all
// ranks wait for it. So every rank reports the same cause: the rank that published it its own status,
// the others ABORTED with the culprit and that status.
//
// Thread-safe. Reporting never waits: publishing runs on a thread of its own.
class GroupError {
 public:
  // A value of the store that a member may set: `on_value` gets it, once, on a thread of this object,
  // unless the group fails first. Of this group alone where `key` is one of WorkerGroup::Key().
  struct Notice {
    std::string key;
    std::function<void(const std::string& value)> on_value;
  };

  // `on_failure` is called once, on a thread of this object, with the status that this rank reports
  // from then on.
  GroupError(const WorkerGroup& group, std::function<void(absl::Status)> on_failure,
             Notice notice = {});

  // Ends watching. Waits for the store while it publishes, so three seconds at most.
  ~GroupError();

  GroupError(const GroupError&) = delete;
  GroupError& operator=(const GroupError&) = delete;

  // This rank failed. Publishes it, a suspicion when its patience is over; the first call counts.
  void Report(absl::Status status);

  // From here on errors are expected (the group is leaving in good order) and are not reported; nor
  // is it missed that the store has gone. What others publish still counts.
  void Leave();

  // What this rank reports: OK until on_failure is about to be called.
  absl::Status status() const;

 private:
  std::unique_ptr<KeyValueStore::Watcher> Watch(const std::string& key);
  void OnWatched(const absl::StatusOr<std::string>& value);
  absl::Status Verdict(absl::string_view reason) const;
  void Fail(absl::Status status);  // unless the group is leaving
  void FailWith(absl::Status status);
  void PublishLoop();

  const WorkerGroup group_;
  const std::function<void(absl::Status)> on_failure_;
  const Notice notice_;
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status reported_ ABSL_GUARDED_BY(mutex_);  // here, to be published; may be a suspicion
  absl::Status status_ ABSL_GUARDED_BY(mutex_);    // final
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<KeyValueStore::Watcher> watcher_;  // of the notice, if there may be one
  std::unique_ptr<KeyValueStore::Watcher> after_notice_ ABSL_GUARDED_BY(mutex_);
  Thread publisher_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_GROUP_ERROR_H_
