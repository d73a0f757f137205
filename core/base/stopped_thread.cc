#include "core/base/stopped_thread.h"

#include <dirent.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/base/thread_state.h"

namespace gradsync {
int StoppedThread(int before) {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return 0;
  int stopped = 0;
  while (const dirent* const thread = readdir(threads)) {
    if (thread->d_name[0] == '.') continue;
    if (!ReadThreadState(absl::StrCat("/proc/self/task/", thread->d_name)).stopped) continue;
    stopped = std::atoi(thread->d_name);
    if (stopped == before) break;
  }
  closedir(threads);
  return stopped;
}

}  // namespace gradsync
