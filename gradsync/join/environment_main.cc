#include "gradsync/join/environment_main.h"

#include <string>
#include <utility>

#include "core/base/launcher_process.h"
#include "core/base/process_main.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/group/launch_environment.h"
#include "gradsync/join/nccl_settings.h"

namespace gradsync {

absl::StatusOr<JoinOptions> JoinOptionsFromEnvironment(int server_tasks,
                                                       const PlaceByFlags& flags) {
  LaunchEnvironment environment;
  absl::StatusOr<LaunchEnvironment> found =
      DetectLaunchEnvironment(EnvironmentVariable, LauncherProcess);
  if (server_tasks != 0 || !SaysAll(flags.rank, flags.world_size, flags.master)) {
    GS_RETURN_IF_ERROR(found.status());
    environment = *std::move(found);
    // Without a launcher it says that the process is alone, which flags may know better.
    const bool by_flags = environment.launcher == Launcher::kNone && flags.world_size.has_value();
    if (!environment.notice.empty() && !by_flags) PrintNotice("gradsync", environment.notice);
  } else if (found.ok() && (flags.world_size == 1 ||
                            (found->rank == flags.rank && found->world_size == flags.world_size))) {
    // Whoever passes a launcher's numbers on by flags has no other way to say these.
    environment.local_rank = found->local_rank;
    environment.local_size = found->local_size;
  }
  JoinOptions options;
  options.launcher = std::string(LauncherName(environment.launcher));
  options.meet.rank = environment.rank.value_or(0);
  options.meet.world_size = environment.world_size.value_or(1);
  if (server_tasks != 0) {
    GS_ASSIGN_OR_RETURN(const TaskRole role, RoleOfTask(environment, server_tasks));
    GS_RETURN_IF_ERROR(ExpectRole(role, server_tasks, /*is_server=*/false));
    options.meet.world_size = role.workers;
    options.num_servers = server_tasks;
  }
  if (flags.rank.has_value()) options.meet.rank = *flags.rank;
  if (flags.world_size.has_value()) options.meet.world_size = *flags.world_size;
  options.meet.master = flags.master.empty() ? environment.master.value_or("") : flags.master;
  options.meet.run_id = environment.run_id.value_or(options.meet.run_id);
  options.meet.attempt = environment.attempt;
  options.meet.notice = [](const std::string& text) { PrintNotice("gradsync", text); };
  options.meet.credentials.secret = EnvironmentVariable(kJobKeyVariable).value_or("");
  GS_RETURN_IF_ERROR(CheckJobKey(kJobKeyVariable, options.meet.credentials.secret));
  options.meet.credentials.insecure = false;
  options.device.local_rank = environment.local_rank;
  options.ranks_on_host = environment.local_size.value_or(0);
  options.nccl_settings = NcclSettings(EnvironmentVariable);
  return options;
}

}  // namespace gradsync
