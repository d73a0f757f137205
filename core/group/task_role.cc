#include "absl/strings/str_cat.h"
#include "core/group/launch_environment.h"

namespace gradsync {

absl::StatusOr<TaskRole> RoleOfTask(const LaunchEnvironment& environment, int servers,
                                    absl::string_view flag) {
  if (!environment.rank.has_value() || !environment.world_size.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag,
                     ": expected srun, mpirun or torchrun to have started this and to "
                     "count its tasks, found none of them"));
  }
  const int tasks = *environment.world_size;
  if (servers < 1 || servers >= tasks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, ": expected at least 1 and fewer than the launcher's ", tasks, " task",
        tasks == 1 ? "" : "s", ", so that a worker is left, found ", servers));
  }
  TaskRole role;
  role.workers = tasks - servers;
  role.is_server = *environment.rank >= role.workers;
  role.number = *environment.rank - (role.is_server ? role.workers : 0);
  return role;
}

absl::Status ExpectRole(const TaskRole& role, int servers, bool is_server) {
  if (role.is_server == is_server) return absl::OkStatus();
  const int task = role.number + (role.is_server ? role.workers : 0);
  return absl::InvalidArgumentError(
      absl::StrCat("--server_tasks: expected workers first and then servers, so task ", task,
                   " of ", role.workers + servers, " as a ", role.is_server ? "server" : "worker",
                   ", found a ", is_server ? "server" : "worker"));
}

}  // namespace gradsync
