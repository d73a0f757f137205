// What a benchmark tells the ranks that it starts: a message (proto/rank_spec.proto) in a file.

#ifndef GRADSYNC_BENCHMARKS_RANKS_RANK_SPEC_H_
#define GRADSYNC_BENCHMARKS_RANKS_RANK_SPEC_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/temporary_folder.h"
#include "core/plan/job_spec.h"
#include "proto/rank_spec.pb.h"

namespace gradsync {

// Sets spec->job: what `job` says, on the CPU, and with the weights that servers have by their
// hosts. How many servers there are is not in it, since ranks are told their addresses.
void SetJob(const JobSpec& job, proto::RankSpec* spec);

// What SetJob() was given. Errors: those of ParseJobSpec().
absl::StatusOr<JobSpec> JobOfSpec(const proto::RankSpec& spec);

// The files that the ranks of one job share: the spec and the start line (start_line.h), in a
// folder of their own among the temporary files. Immutable, hence thread-safe.
class RankFiles {
 public:
  // Adds to `spec` where the start line is, and the timeout. Errors: those of WriteJson() and of
  // TemporaryFolder.
  static absl::StatusOr<std::unique_ptr<RankFiles>> Create(proto::RankSpec spec,
                                                           absl::Duration timeout);

  // "--spec=PATH", which every rank is given.
  std::string flag() const { return "--spec=" + spec_path(); }

 private:
  explicit RankFiles(TemporaryFolder folder) : folder_(std::move(folder)) {}
  std::string spec_path() const { return folder_.path() + "/spec.json"; }

  const TemporaryFolder folder_;  // removed with this object
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_RANK_SPEC_H_
