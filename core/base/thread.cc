#include "core/base/thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"

namespace gradsync {

bool RunBounded(absl::Duration bound, std::function<void()> call) {
  struct End {
    Mutex mutex;
    CondVar changed;
    bool reached ABSL_GUARDED_BY(mutex) = false;
  };
  const auto end = std::make_shared<End>();
  std::thread thread([end, call = std::move(call)]() mutable {
    call();
    call = nullptr;
    MutexLock lock(&end->mutex);
    end->reached = true;
    end->changed.SignalAll();
  });
  const Deadline deadline = Deadline::In(bound);
  bool reached = false;
  {
    MutexLock lock(&end->mutex);
    while (!end->reached && !end->changed.WaitWithDeadline(&end->mutex, deadline)) {
    }
    reached = end->reached;
  }
  if (reached) {
    thread.join();
  } else {
    thread.detach();
  }
  return reached;
}

// See proc(5); the flags are those of the kernel's include/linux/sched.h.
ThreadState ReadThreadState(const std::string& folder) {
  constexpr unsigned kEnding = 0x4;
  const int file = open((folder + "/stat").c_str(), O_RDONLY);
  if (file < 0) return {};
  char text[256];
  const ssize_t size = read(file, text, sizeof(text));
  close(file);
  const std::string line(text, size < 0 ? 0 : static_cast<size_t>(size));
  const size_t name_end = line.rfind(") ");  // the name may have any characters
  if (name_end == line.npos) return {};
  char state = '\0';
  unsigned flags = 0;
  std::sscanf(line.c_str() + name_end + 2, "%c %*d %*d %*d %*d %*d %u", &state, &flags);
  return {state == 't' || state == 'T', (flags & kEnding) != 0};
}

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
