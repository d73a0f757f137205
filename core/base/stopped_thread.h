#ifndef GRADSYNC_CORE_BASE_STOPPED_THREAD_H_
#define GRADSYNC_CORE_BASE_STOPPED_THREAD_H_

namespace gradsync {

// The number of a thread of this process that is held, as by a debugger, while the caller runs; 0 if
// there is none, or the kernel does not say. Of several it is `before` if that is one of them: who
// asks again and again with the last answer follows one thread, though others are held in turn. Takes
// some microseconds for each thread. Thread-safe.
int StoppedThread(int before = 0);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_STOPPED_THREAD_H_
