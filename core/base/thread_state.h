#ifndef GRADSYNC_CORE_BASE_THREAD_STATE_H_
#define GRADSYNC_CORE_BASE_THREAD_STATE_H_

#include <string>

namespace gradsync {

// What the kernel says of a thread, of this process or of another.
struct ThreadState {
  bool stopped = false;  // by a signal, or held by a debugger
  bool ending = false;   // it has ended, or is about to
};

// `folder`: "/proc/self/task/4711", or "/proc/4711" for the first thread of a process. Neither for a
// thread that is gone. Takes some microseconds. Thread-safe.
ThreadState ReadThreadState(const std::string& folder);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_THREAD_STATE_H_
