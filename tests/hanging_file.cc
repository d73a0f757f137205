// A disk that does not answer, for LD_PRELOAD: a thread that opens a file whose name contains
// "hangs" waits for ever, unless it is the process's first thread.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

namespace {

int Open(const char* path, int flags, unsigned mode) {
  while (std::strstr(path, "hangs") != nullptr && syscall(SYS_gettid) != getpid()) pause();
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  return Open(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  return Open(path, flags, mode);
}
}
