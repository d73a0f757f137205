// What the processes of a job have and others do not, a key or a secret, and how they show it.

#ifndef GRADSYNC_CORE_BASE_SECRET_PROOF_H_
#define GRADSYNC_CORE_BASE_SECRET_PROOF_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"

namespace gradsync {

// A job's key: a text that its processes share and others do not know. It keeps out processes that
// have lost their way (the same command started twice, a client of another job), not those who read
// the network: that takes TLS.

// The variable of the environment in which a launcher may give all processes of a job their key.
constexpr char kJobKeyVariable[] = "GRADSYNC_JOB_KEY";

// 128 random bits of the kernel, as 32 hexadecimal digits. Thread-safe.
std::string NewJobKey();

// Whether `key` is empty, or has at most 128 characters, letters, digits, "-" and "_" only.
// Errors: INVALID_ARGUMENT that names `what`, without the key.
absl::Status CheckJobKey(absl::string_view what, absl::string_view key);

// Whether two texts are equal, in a time that depends on their lengths alone.
bool SameSecret(absl::string_view a, absl::string_view b);

// How a process shows that it has a secret without sending it: the other side gives it a challenge,
// which nobody has had before, and gets a proof, which is good once. docs/internals/protocol.md has the texts.

// HMAC with SHA-256 (RFC 2104), 64 lower-case hexadecimal digits.
std::string HmacSha256Hex(absl::string_view secret, absl::string_view text);

// Of the side that asks. Thread-safe. Strangers make it remember nothing: a challenge says itself
// that it is this object's and when it was made, and only those that were answered well are kept,
// for as long as they are good.
class ProofChecker {
 public:
  // How long a challenge may be answered.
  static constexpr absl::Duration kLifetime = absl::Minutes(1);

  // With an empty secret nothing is asked for.
  explicit ProofChecker(std::string secret);

  bool asks() const { return !secret_.empty(); }

  std::string NewChallenge(MonotonicTime now = MonotonicTime::Now());

  // Errors: UNAUTHENTICATED, without the secret and without what was shown, for no proof, for one
  // that was made with another secret, and for one that was shown before.
  absl::Status Check(absl::string_view proof, MonotonicTime now = MonotonicTime::Now());

 private:
  // Which numbers of a challenge's proofs were shown: the highest, and those below it by bits.
  struct Shown {
    MonotonicTime made;
    uint64_t highest = 0;
    uint64_t below = 0;
  };

  // Makes and checks the part of a challenge that says it is this object's.
  std::string Sign(absl::string_view challenge) const;
  bool ReadTime(absl::string_view challenge, MonotonicTime* made) const;
  void Forget(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string secret_;
  const std::string own_key_;
  Mutex mutex_;
  std::map<std::string, Shown> shown_ ABSL_GUARDED_BY(mutex_);  // by challenge
  MonotonicTime forget_at_ ABSL_GUARDED_BY(mutex_);
};

// Of the side that is asked: proofs for one challenge. Not thread-safe.
class ProofMaker {
 public:
  ProofMaker(std::string secret, std::string challenge);

  // Another one each time. They may be shown in another order, but not long after later ones.
  std::string Next();

 private:
  const std::string secret_;
  const std::string challenge_;
  uint64_t count_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SECRET_PROOF_H_
