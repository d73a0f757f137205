// Who may take part in a server's run: hears the streams that come, reads what they say of themselves, and
// admits them or turns them away.

#ifndef GRADSYNC_PS_SERVER_ADMISSION_H_
#define GRADSYNC_PS_SERVER_ADMISSION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "ps_server/roster.h"

namespace gradsync {

// What is asked of those who come.
struct AdmissionRules {
  HelloLimits limits;
  std::string key;  // of the job; empty: that of the first worker whose hello is admitted, if any
  bool proof = false;  // a stream that does not say which run it is of is refused
};

// A stream that has said a hello which was not turned away alone.
struct MemberStream {
  std::shared_ptr<FrameStream> stream;
  int rank = -1;  // -1: of a worker that differs from the others, and so has no place in the run
  int connection = 0;
};

// A stream is a guest, then a member or turned away, and then closed. Thread-safe; calls nobody but
// through arguments, and then without its mutex.
class Admission {
 public:
  // See Roster for `run_id`.
  Admission(std::string run_id, int attempt, AdmissionRules rules);

  // A stream has come. Errors: PERMISSION_DENIED for one of another run or job, as far as it says and
  // is known here; those of Guests.
  absl::Status Enter(const std::shared_ptr<FrameStream>& stream);

  // What became of a hello that was not turned away.
  struct Admitted {
    MemberStream member;
    std::shared_ptr<const CheckedHello> hello;
    std::string key;             // of the job, as far as it is known
    Roster::Difference differs;  // not null: why the run is to end
    bool complete = false;       // this was the last stream that was missing
  };

  // HELLO of a guest, whose stream is a member's when `then` is called. Takes a time that the message
  // sizes; and for one hello at a time, `then` included, so that strangers cannot multiply the memory
  // that it takes. Errors, which turn this stream away: those of CheckHello() and of
  // Roster::CheckPlace(); INVALID_ARGUMENT for what is no hello; why the run has ended.
  absl::Status Hello(const std::shared_ptr<FrameStream>& stream, const Payload& payload,
                     absl::FunctionRef<void(const Admitted&)> then) ABSL_LOCKS_EXCLUDED(mutex_);

  // The run has ended, with this status: nobody is admitted any more.
  void Close(const absl::Status& status);

  // The stream is closed, and no guest any more. A member is to be counted out besides.
  void Leave(const FrameStream* stream);
  void CountOut();

  // Takes out the guests that have had too long: `timeout`, or less once all workers are there, for
  // whoever comes then is a stranger.
  std::vector<std::shared_ptr<FrameStream>> TakeLate(absl::Duration timeout);

  std::vector<MemberStream> members() const;  // all that were ever admitted
  int open() const;                           // members that were not counted out

  // Whether all streams of all workers have been admitted; then roster() is valid, and changes no
  // more.
  bool complete() const;
  const Roster& roster() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return roster_; }

  // Roster's.
  int Number(int rank) const;
  std::string Name(int rank) const;
  std::string ServerNumbered(int number) const;
  std::string Missing() const;

 private:
  absl::Status CheckProof(const StreamProof& proof) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOpen(const StreamProof& proof) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Admitted TakeIn(const std::shared_ptr<FrameStream>& stream,
                  std::shared_ptr<const CheckedHello> hello, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HelloLimits limits_;
  const bool proof_required_;
  Mutex hello_mutex_;  // held while a hello is read and what it completes is made; before mutex_
  mutable Mutex mutex_;
  Roster roster_ ABSL_GUARDED_BY(mutex_);
  std::string key_ ABSL_GUARDED_BY(mutex_);
  Guests guests_ ABSL_GUARDED_BY(mutex_);
  std::vector<MemberStream> members_ ABSL_GUARDED_BY(mutex_);
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);  // Close() was called, with this
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_ADMISSION_H_
