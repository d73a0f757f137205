#ifndef GRADSYNC_BASE_STOPPED_THREAD_H_
#define GRADSYNC_BASE_STOPPED_THREAD_H_

namespace gradsync {

// The number of a thread of this process that is held, as by a debugger, while the caller runs; 0 if
// there is none, or the kernel does not say. Takes some microseconds for each thread. Thread-safe.
int StoppedThread();

}  // namespace gradsync

#endif  // GRADSYNC_BASE_STOPPED_THREAD_H_
