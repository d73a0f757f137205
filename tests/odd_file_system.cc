// A library to preload: the C library's calls on a file system such as SMB's, exFAT or one in user
// space. It has no symbolic links and no locks, syncs no folders, and renames over nothing.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace {

int Refuse(int error) {
  errno = error;
  return -1;
}

// Only a folder of checkpoints is on such a disk.
bool IsCheckpoint(const char* path) { return std::strstr(path, "/odd/") != nullptr; }

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
