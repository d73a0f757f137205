// What a launcher says to this process in environment variables. Only for main files: nothing else
// reads the environment.

#ifndef GRADSYNC_GRADSYNC_JOIN_ENVIRONMENT_MAIN_H_
#define GRADSYNC_GRADSYNC_JOIN_ENVIRONMENT_MAIN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "gradsync/join/join.h"

namespace gradsync {

// What a program's flags say of its place in the job; unset and empty: nothing.
struct PlaceByFlags {
  absl::optional<int> rank;
  absl::optional<int> world_size;
  std::string master;
};

// Who this process is and where the others are, as torchrun, Slurm or MPI say
// (core/group/launch_environment.h); without any of them one rank alone. The job itself is the
// default one: set `sync.job`. The launcher's key (core/base/secret_proof.h) is the job's secret;
// without one, ranks that other hosts could reach refuse to listen, unless meet.credentials say
// otherwise. With `server_tasks`, that many of the launcher's tasks are parameter servers
// (core/group/launch_environment.h), and the workers wait until these have registered. What `flags` say
// wins, and where they say all (SaysAll()) and there are no `server_tasks`, no more is taken from a
// launcher than the place on this host, and that only where its rank and world size are the same.
// Errors: those of DetectLaunchEnvironment(), RoleOfTask() and ExpectRole().
absl::StatusOr<JoinOptions> JoinOptionsFromEnvironment(int server_tasks = 0,
                                                       const PlaceByFlags& flags = {});

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_ENVIRONMENT_MAIN_H_
