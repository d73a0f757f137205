#ifndef GRADSYNC_CORE_BASE_SUSPEND_PROCESS_H_
#define GRADSYNC_CORE_BASE_SUSPEND_PROCESS_H_

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "absl/time/time.h"

namespace gradsync {

// Stops the calling process, all of its threads, for `time`, as a scheduler does that suspends a job.
inline void SuspendProcess(absl::Duration time) {
  const timespec pause = absl::ToTimespec(time);
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    kill(self, SIGSTOP);
    nanosleep(&pause, nullptr);
    kill(self, SIGCONT);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SUSPEND_PROCESS_H_
