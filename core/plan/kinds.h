// What a job's flags choose among: who updates, where servers run, with which precision, and how far
// workers may drift apart.

#ifndef GRADSYNC_CORE_PLAN_KINDS_H_
#define GRADSYNC_CORE_PLAN_KINDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Who runs the optimizer; see core/sync/gradient_sync.h.
enum class UpdateSite { kWorker, kOwner };

// Which hosts parameter servers run on. Every worker has a host of its own.
enum class Placement {
  kNone,       // there are no servers
  kDedicated,  // each server has a host of its own
  kColocated,  // server s is beside worker s; there are at most as many as workers
  kMixed,      // one server is beside each worker, and further ones have hosts of their own
};

// As flags and records spell them: "dedicated", and "" for kNone.
std::string PlacementName(Placement placement);

// Errors: INVALID_ARGUMENT naming --placement, what was expected and what came.
absl::StatusOr<Placement> ParsePlacement(absl::string_view text);

// Of convolutions and matrix products, and of what passes between them. Parameters, gradients,
// buckets and the loss are fp32 in each. worker/train/compute_options.h says which devices offer which.
enum class Precision { kFp32, kBf16, kFp16 };

// "fp32", "bf16" or "fp16".
std::string PrecisionName(Precision precision);

// Errors: INVALID_ARGUMENT naming --precision, what was expected and what came.
absl::StatusOr<Precision> ParsePrecision(absl::string_view text);

// How far workers may drift apart; docs/use/consistency.md has the meaning and the sources.
//
//   bsp     Every step of every worker waits for all others.
//   ssp:S   A worker waits when it is more than S steps ahead of the slowest.
//   asp     Nobody waits.
//
// Under ssp and asp owners apply each worker's gradient by itself, times 1/n, when it arrives.

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

#endif  // GRADSYNC_CORE_PLAN_KINDS_H_
