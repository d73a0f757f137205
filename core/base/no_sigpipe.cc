#include "core/base/no_sigpipe.h"

#include <pthread.h>
#include <time.h>

namespace gradsync {
namespace {

sigset_t OnlySigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool Pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

NoSigpipe::NoSigpipe() : pending_before_(Pending()) {
  const sigset_t set = OnlySigpipe();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

NoSigpipe::~NoSigpipe() {
  // One that came meanwhile would be delivered as soon as the mask allows it.
  if (!pending_before_ && Pending()) {
    const sigset_t set = OnlySigpipe();
    const timespec now = {};
    sigtimedwait(&set, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace gradsync
