// What NCCL chose to do: it has no call that tells, but a log that does.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_NCCL_LOG_H_
#define GRADSYNC_BENCHMARKS_RECORDS_NCCL_LOG_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "core/plan/job_spec.h"

namespace gradsync {

// From the lines that NCCL 2.28 writes on rank 0 under NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING,
// one for each collective, after "HOST:PID:TID [0] NCCL INFO ":
//
//   AllReduce: 26214400 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}=...
//   AllReduce [Symmetric]: 4096 Bytes -> Kernel NAME nchannels ...
//
// "AllReduce RING/SIMPLE, Broadcast RING/LL RING/SIMPLE": those with most bytes first, and of each
// the algorithms and protocols that were seen; "symmetric/NAME" for a kernel. "unknown" when no
// line tells, and when one tells in a way that is not understood here. Thread-safe.
std::string NcclChosen(absl::string_view log);

// The log of one job's rank 0; the file goes with it. Movable.
class NcclLog {
 public:
  // The value of a variable of the environment, if it is set.
  using Lookup = std::function<absl::optional<std::string>(absl::string_view name)>;

  // For a job over `link`. Asks for nothing unless that is kNccl, nor where the user has NCCL log
  // by himself (NCCL_DEBUG, NCCL_DEBUG_SUBSYS or NCCL_DEBUG_FILE is set), whose log it would be.
  // Errors: UNAVAILABLE when there is no file to be had.
  static absl::StatusOr<NcclLog> ForLink(Link link, const Lookup& lookup);

  // What the process of rank 0 needs in its environment, NAME=value each.
  std::vector<std::string> environment() const;

  // After the job: NcclChosen() of what was logged; empty over another link.
  std::string Chosen() const;

 private:
  NcclLog() = default;

  struct Remove {
    void operator()(const std::string* path) const;
  };

  bool nccl_ = false;
  std::unique_ptr<const std::string, Remove> file_;  // its path; null: not asked for
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_NCCL_LOG_H_
