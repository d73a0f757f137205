#ifndef GRADSYNC_CORE_BASE_LAUNCHER_PROCESS_H_
#define GRADSYNC_CORE_BASE_LAUNCHER_PROCESS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace gradsync {

// Names the launcher that started this process, where it sets nothing by which its processes could
// tell their job from another one.
//
// The name is the address in the "--control-port HOST:PORT" of the nearest ancestor that has one, which
// MPICH's proxies do, the same on all hosts of a job. Without that, it is the process id and start time
// of the nearest ancestor without `mark` in its environment, a variable that a launcher sets for what
// it starts, if that is called mpiexec, mpirun or hydra, and `on_one_host`, since each host has a
// process of its own. Otherwise, and where /proc does not say, it is "". Thread-safe.
std::string LauncherProcess(absl::string_view mark, bool on_one_host);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_LAUNCHER_PROCESS_H_
