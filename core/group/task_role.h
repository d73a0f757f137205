// Which tasks of a job are parameter servers, where one launcher starts workers and servers alike
// and counts them together: one srun or mpirun line, one torchrun.

#ifndef GRADSYNC_CORE_GROUP_TASK_ROLE_H_
#define GRADSYNC_CORE_GROUP_TASK_ROLE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/group/launch_environment.h"

namespace gradsync {

struct TaskRole {
  bool is_server = false;
  int number = 0;   // the worker's rank, or the server's number; both count from 0
  int workers = 0;  // of the whole job
};

// The rule: the last `servers` tasks are servers, all before them are workers. So a worker's rank
// is its task's number, rank 0 is on the launcher's first host, where all look for the store, and
// among the tasks of any host workers come first, so that a worker's local rank is its task's.
// Pure.
// Errors: INVALID_ARGUMENT naming `flag`, which `servers` comes from, when no launcher counts tasks,
// or when there are not at least one server and one worker.
absl::StatusOr<TaskRole> RoleOfTask(const LaunchEnvironment& environment, int servers,
                                    absl::string_view flag = "server_tasks");

// For programs that are one or the other. Errors: INVALID_ARGUMENT naming the rule, when the task
// is not what its program can be.
absl::Status ExpectRole(const TaskRole& role, int servers, bool is_server);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_TASK_ROLE_H_
