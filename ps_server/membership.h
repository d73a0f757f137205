// A server's own place in its run: finds the run's store by what workers say of it, becomes a member there
// (ps_server/run_member.h) as soon as it can be reached, and tells the group of whom this server has
// lost.

#ifndef GRADSYNC_PS_SERVER_MEMBERSHIP_H_
#define GRADSYNC_PS_SERVER_MEMBERSHIP_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/run_member.h"

namespace gradsync {

struct MembershipOptions {
  std::string run_id;  // empty: that of the first hello
  int attempt = 0;
  std::string key;  // of the job; empty: as hellos have it
  Credentials credentials = InsecureCredentials();
  std::shared_ptr<Activity> activity;
  // RunMemberOptions::on_failure.
  std::function<void(absl::Status)> on_failure;
};

// Thread-safe, but for Watch(). A server of whose store nobody says anything, or that does not watch,
// is no member, and all goes on without.
class Membership {
 public:
  explicit Membership(MembershipOptions options) : options_(std::move(options)) {}

  // Stops seeking, and waits for an attempt that is under way.
  ~Membership();

  // Once, before all else: becomes a member as Service::WatchRun() has it, on a thread of its own.
  void Watch(absl::Duration failure_timeout, StoreConnector connect);

  // As Service::JoinRun() has it.
  absl::Status Join(const std::string& store, int server);

  // A hello was admitted, which says where the store is, what this server is called, and of which run
  // all are; the job's key, if there is one, is `key`. Of store and number the first word counts, or
  // else Join()'s.
  void Learn(const proto::Hello& hello, const std::string& key);

  // What this server is called among all servers of the job, once it is known.
  absl::optional<int> number() const;

  // Whether others in the store miss this server when it is gone, and it them.
  bool member() const;

  // Tells the group of a failure, after which on_failure follows with what failed first. False if
  // this server is no member, and so nobody was told.
  bool Report(const absl::Status& status);

  // Who of the run is not in its store; "" for one that is no member.
  std::string DescribeMissing() const;

  // RunMember::AskToDrain() by the server at `address`. Errors: those, and FAILED_PRECONDITION where no
  // run is under way whose store is known.
  absl::Status AskToDrain(int signal, absl::string_view address);

  // The run has ended: seeks no more. Does not block.
  void End();

  // After End(), of a run that ended with `status`: waits for an attempt that is under way, and is no
  // member from here on.
  void Leave(const absl::Status& status);

 private:
  void Seek();
  void JoinThread();
  absl::Status Become();
  // Whether a run is under way whose store is known.
  bool KnowsRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayBecome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the run that it knows.
  RunMemberOptions RunOptions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<RunMember> run() const;

  absl::Duration failure_timeout_ = absl::InfiniteDuration();
  StoreConnector connect_;
  mutable Mutex mutex_;
  CondVar changed_;
  MembershipOptions options_ ABSL_GUARDED_BY(mutex_);
  // As Join() says it, or else the first hello.
  std::string store_ ABSL_GUARDED_BY(mutex_);
  absl::optional<int> number_ ABSL_GUARDED_BY(mutex_);
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;  // Become() is at it, or has done it
  Deadline next_attempt_ ABSL_GUARDED_BY(mutex_) = Deadline::At(MonotonicTime::InfinitePast());
  std::shared_ptr<RunMember> run_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex thread_mutex_;                            // several may wait for the run's end
  Thread thread_ ABSL_GUARDED_BY(thread_mutex_);  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_MEMBERSHIP_H_
