#ifndef GRADSYNC_BASE_LAUNCHER_PROCESS_H_
#define GRADSYNC_BASE_LAUNCHER_PROCESS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace gradsync {

// Names the launcher that started this process, where it sets nothing by which its processes could
// tell their job from another one. The launcher is the nearest ancestor without `mark` in its
// environment, a variable that it sets for what it starts; scripts between have it too.
//
// The name is the address in its "--control-port HOST:PORT", which MPICH's proxies have, the same on
// all hosts of a job. Without that, it is the launcher's process id and start time if
// `on_one_host`, since each host has a launcher's process of its own. Otherwise, and where /proc does
// not say, it is "". Thread-safe.
std::string LauncherProcess(absl::string_view mark, bool on_one_host);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_LAUNCHER_PROCESS_H_
