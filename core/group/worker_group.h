// Who this worker is and how it reaches the others. A value that enters a backend's factory;
// nothing reads the environment.

#ifndef GRADSYNC_CORE_GROUP_WORKER_GROUP_H_
#define GRADSYNC_CORE_GROUP_WORKER_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/trace_recorder.h"
#include "core/group/key_value_store.h"

namespace gradsync {

struct WorkerGroup {
  int rank = 0;
  int world_size = 1;  // workers only
  std::string run_id;  // the same for all processes of a job, and no other job's
  int attempt = 0;     // counts restarts of the job
  // core/base/secret_proof.h; opened streams show it, accepted ones are asked for it.
  std::string key;
  std::shared_ptr<KeyValueStore> store;
  std::string store_address;  // "host:port" where it is served; empty: in this process alone
  std::string
      address;  // of this host, as the other ranks reach it, without a port; e.g. "127.0.0.1"
  Credentials credentials;                     // for every connection
  absl::Duration timeout = absl::Seconds(60);  // a peer silent for longer counts as lost
  // After which a member that gives no sign of life is lost (core/group/liveness.h); infinite:
  // nobody is.
  absl::Duration failure_timeout = absl::InfiniteDuration();

  std::shared_ptr<TraceRecorder> recorder;  // of some steps, for a trace; null: of none

  // Of a group that is a part of a job (core/group/mesh.h): its name among the job's groups, and
  // the ranks of the job that its members are. Empty: the group is the whole job.
  std::string part;
  std::vector<int> ranks_of_job;

  // Keys of different runs, attempts and parts never meet.
  std::string Key(absl::string_view name) const {
    return part.empty() ? JobKey(name) : JobKey(absl::StrCat(part, "/", name));
  }

  // The same for what all parts of the job share.
  std::string JobKey(absl::string_view name) const {
    return absl::StrCat(run_id, "/", attempt, "/", name);
  }

  // What a member of this group is called in messages, by its number in the job: "rank 3".
  int RankOfJob(int member) const { return ranks_of_job.empty() ? member : ranks_of_job[member]; }
  std::string Name(int member) const { return absl::StrCat("rank ", RankOfJob(member)); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (int member = 0; member < world_size; ++member) names.push_back(Name(member));
    return names;
  }

  // What the store says of members who have not come, for whom it has no other names than their
  // numbers in this group. It must not begin with one, or the job would blame that rank.
  absl::Status InJob(const absl::Status& status) const {
    if (ranks_of_job.empty() || !absl::IsDeadlineExceeded(status)) return status;
    return absl::DeadlineExceededError(absl::StrCat("of the group of ranks ",
                                                    absl::StrJoin(ranks_of_job, ", "),
                                                    ", numbered from 0: ", status.message()));
  }
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_WORKER_GROUP_H_
