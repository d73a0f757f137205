// A library to preload: the C library's calls on disks that some users have.
//
// On a file system such as SMB's, exFAT or one in user space, there are no symbolic links and no
// locks, folders are not synced, and nothing is renamed over something: in a folder "odd".
//
// A disk that does not answer: a thread that opens a file whose name contains "hangs" waits for
// ever, unless it is the process's first thread.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace {

int Refuse(int error) {
  errno = error;
  return -1;
}

// Only a folder of checkpoints is on such a disk.
bool IsCheckpoint(const char* path) { return std::strstr(path, "/odd/") != nullptr; }

int Open(const char* path, int flags, unsigned mode) {
  while (std::strstr(path, "hangs") != nullptr && syscall(SYS_gettid) != getpid()) pause();
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // namespace

extern "C" int symlink(const char* target, const char* path) noexcept {
  if (IsCheckpoint(path)) return Refuse(EPERM);
  return symlinkat(target, AT_FDCWD, path);
}

extern "C" int flock(int, int) noexcept { return Refuse(ENOLCK); }

extern "C" int fsync(int file) {
  struct stat what;
  if (fstat(file, &what) == 0 && S_ISDIR(what.st_mode)) return Refuse(EINVAL);
  return static_cast<int>(syscall(SYS_fsync, file));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  struct stat there;
  if (IsCheckpoint(to) && lstat(to, &there) == 0) return Refuse(EEXIST);
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

extern "C" int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  return Open(path, flags, mode);
}

extern "C" int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  return Open(path, flags, mode);
}
