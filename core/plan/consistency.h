// How far workers may drift apart; docs/consistency.md has the meaning and the sources.
//
//   bsp     Every step of every worker waits for all others.
//   ssp:S   A worker waits when it is more than S steps ahead of the slowest.
//   asp     Nobody waits.
//
// Under ssp and asp owners apply each worker's gradient by itself, times 1/n, when it arrives.

#ifndef GRADSYNC_CORE_PLAN_CONSISTENCY_H_
#define GRADSYNC_CORE_PLAN_CONSISTENCY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

struct Consistency {
  enum class Kind { kBsp, kSsp, kAsp };

  Kind kind = Kind::kBsp;
  int64_t bound = 0;  // kSsp: S

  bool bulk() const { return kind == Kind::kBsp; }

  // Whether a worker whose clock is `ahead` steps before the slowest may go on. Not for kBsp.
  bool Allows(int64_t ahead) const { return kind == Kind::kAsp || ahead <= bound; }

  friend bool operator==(Consistency a, Consistency b) {
    return a.kind == b.kind && a.bound == b.bound;
  }
  friend bool operator!=(Consistency a, Consistency b) { return !(a == b); }
};

// The largest S that is taken for one.
constexpr int64_t kMaxStalenessBound = 1000000;

// "bsp", "ssp:2" or "asp"; ParseConsistency() gives the value back. An empty text is bsp.
// Errors: INVALID_ARGUMENT with what was expected and found.
std::string ConsistencyName(Consistency consistency);
absl::StatusOr<Consistency> ParseConsistency(absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_CONSISTENCY_H_
