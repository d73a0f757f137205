#ifndef GRADSYNC_CORE_GROUP_SLURM_NODE_LIST_H_
#define GRADSYNC_CORE_GROUP_SLURM_NODE_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Host names of a Slurm node list, in order: "gpu[003-005,012],x1" gives gpu003, gpu004, gpu005,
// gpu012, x1. Numbers keep the width of a range's lower end; a name may have several brackets, of
// which the last counts fastest. Errors: INVALID_ARGUMENT, with what was expected and found; lists
// of more than 65536 hosts, as many as a job has workers, are refused.
absl::StatusOr<std::vector<std::string>> ExpandSlurmNodeList(absl::string_view list);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_SLURM_NODE_LIST_H_
