// For calls of libraries that write to sockets without MSG_NOSIGNAL, such as Gloo: a peer that is
// gone must be an error of the call, not the death of this process.

#ifndef GRADSYNC_CORE_BASE_NO_SIGPIPE_H_
#define GRADSYNC_CORE_BASE_NO_SIGPIPE_H_

#include <signal.h>

namespace gradsync {

// While it lives, a write of the calling thread to a closed socket or pipe fails with EPIPE and
// raises nothing. Threads that are started meanwhile are so for good, since they inherit the mask.
// What the process does with the signal elsewhere is left alone. To be destroyed by the thread that
// made it; may be nested.
class NoSigpipe {
 public:
  NoSigpipe();
  ~NoSigpipe();

  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t before_;
  bool pending_before_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_NO_SIGPIPE_H_
