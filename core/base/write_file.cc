#include "core/base/write_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"

namespace gradsync {
namespace {

constexpr int kMostLinks = 40;  // as the kernel has it

// How long the reader of a pipe may take nothing.
constexpr absl::Duration kPatience = absl::Seconds(60);

absl::Status Failed(const std::string& path) {
  if (errno == EAGAIN) {
    return absl::DeadlineExceededError(absl::StrCat(
        "cannot write ", path, ": its reader took nothing for ", absl::FormatDuration(kPatience)));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

// Pipes that are open from when they were tried until they are written to. They belong to the process,
// as its descriptors do.
class HeldPipes {
 public:
  static HeldPipes& Get() {
    static auto* const held = new HeldPipes;
    return *held;
  }

  // Takes over the open `file`.
  void Hold(int file) {
    struct stat pipe;
    MutexLock lock(&mutex_);
    if (fstat(file, &pipe) != 0 || !files_.emplace(KeyOf(pipe), file).second) close(file);
  }

  // The file, which is the caller's from here on, or -1.
  int Take(const struct stat& pipe) {
    MutexLock lock(&mutex_);
    const auto found = files_.find(KeyOf(pipe));
    if (found == files_.end()) return -1;
    const int file = found->second;
    files_.erase(found);
    return file;
  }

 private:
  using Key = std::pair<dev_t, ino_t>;

  static Key KeyOf(const struct stat& pipe) { return {pipe.st_dev, pipe.st_ino}; }

  Mutex mutex_;
  std::map<Key, int> files_ ABSL_GUARDED_BY(mutex_);
};

// No open() waits: not for the reader of a pipe, and not for a modem.
int Open(const std::string& path, int flags) {
  return open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0666);
}

// Why the open() of `path` failed.
std::string WhyNotOpened(const std::string& path) {
  const int error = errno;
  struct stat found;
  if (error == ENXIO && stat(path.c_str(), &found) == 0) {
    if (S_ISFIFO(found.st_mode)) return "a pipe that nobody reads";
    if (S_ISSOCK(found.st_mode)) return "a socket";
  }
  return std::strerror(error);
}

// One that may be tried: /dev/null, /dev/zero and /dev/full, to which a byte means nothing. To another one
// it may mean much, even that it is opened.
bool IsHarmless(const struct stat& device) {
  constexpr unsigned kMemoryDevices = 1;
  if (!S_ISCHR(device.st_mode) || major(device.st_rdev) != kMemoryDevices) return false;
  const unsigned number = minor(device.st_rdev);
  return number == 3 || number == 5 || number == 7;
}

// The terminal of the process, which may have none.
bool IsOwnTerminal(const struct stat& device) {
  return S_ISCHR(device.st_mode) && device.st_rdev == makedev(5, 0);
}

// Whether a write that a full pipe has refused may be tried again. Leaves errno where it may not.
bool AwaitReader(int file) {
  pollfd wait = {file, POLLOUT, 0};
  const int ready = poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience)));
  if (ready == 0) errno = EAGAIN;
  return ready > 0 || (ready < 0 && errno == EINTR);
}

// Writes, and with `sync` waits for the disk. Closes `file`. Leaves errno where it fails.
bool WriteAndClose(int file, absl::string_view content, bool sync) {
  bool good = true;
  while (good && !content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written >= 0) {
      content.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      good = AwaitReader(file);
    } else if (errno != EINTR) {
      good = false;
    }
  }
  // Some file systems cannot, and say so.
  if (good && sync)
    good = fsync(file) == 0 || errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
  const int error = errno;
  if (close(file) != 0 && good) return false;
  errno = error;
  return good;
}

bool WriteTo(const std::string& path, int flags, absl::string_view content, bool sync) {
  const int file = Open(path, flags);
  return file >= 0 && WriteAndClose(file, content, sync);
}

// Why what is no ordinary file at `path` cannot be written to. A pipe is held.
std::string WhyNotWritableInPlace(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return std::strerror(errno);
  const bool pipe = S_ISFIFO(found.st_mode);
  if (!pipe && !S_ISSOCK(found.st_mode) && !IsHarmless(found) && !IsOwnTerminal(found)) {
    return access(path.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
  }
  const absl::StatusOr<int> file = OpenInPlace(path, O_APPEND);
  if (!file.ok()) return std::string(file.status().message());
  if (pipe) {
    HeldPipes::Get().Hold(*file);
  } else {
    close(*file);
  }
  return "";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// So that the new name is on the disk too. Not all folders can be opened, and not all file systems
// sync them; the file is whole in any case.
void SyncFolderOf(const std::string& path) {
  const int file = open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

// The file that is to be replaced where `path` is a link; nothing where the link is one to what a
// process has open, such as /dev/stdout: a new file of that name would be another one.
absl::optional<std::string> FollowLinks(std::string path) {
  struct stat processes;
  struct stat link;
  const bool known = stat("/proc", &processes) == 0;
  char target[PATH_MAX];
  for (int links = 0; links < kMostLinks; ++links) {
    if (lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return path;
    if (known && link.st_dev == processes.st_dev) return absl::nullopt;
    const ssize_t bytes = readlink(path.c_str(), target, sizeof(target));
    if (bytes < 0) return path;
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
    path = ResolvePath(std::string(target, static_cast<size_t>(bytes)), folder);
  }
  return path;
}

// The file that a new one takes the place of, or nothing where `wanted` is written to as it is.
absl::optional<std::string> FileToReplace(const std::string& wanted) {
  struct stat found;
  const absl::optional<std::string> target = FollowLinks(wanted);
  const bool device = stat(wanted.c_str(), &found) == 0 && !S_ISREG(found.st_mode);
  return device ? absl::nullopt : target;
}

// Whether a rename over `path` is refused although its folder can be written, as in /tmp.
bool IsKeptByAnother(const std::string& path) {
  struct stat file;
  struct stat folder;
  if (lstat(path.c_str(), &file) != 0 || stat(FolderOf(path).c_str(), &folder) != 0) return false;
  return (folder.st_mode & S_ISVTX) != 0 && geteuid() != 0 && file.st_uid != geteuid() &&
         folder.st_uid != geteuid();
}

std::string TemporaryBeside(const std::string& path) {
  return absl::StrCat(path, ".", getpid(), ".tmp");
}

}  // namespace

absl::StatusOr<int> OpenInPlace(const std::string& path, int flags) {
  struct stat found;
  const bool there = stat(path.c_str(), &found) == 0;
  int file = there && S_ISFIFO(found.st_mode) ? HeldPipes::Get().Take(found) : -1;
  if (file < 0) file = Open(path, flags);
  if (file < 0) {
    const absl::StatusCode code = absl::ErrnoToStatusCode(errno);
    return absl::Status(code, WhyNotOpened(path));
  }
  if (!there || !IsHarmless(found) || write(file, "\n", 1) == 1) return file;
  const absl::StatusCode code = absl::ErrnoToStatusCode(errno);
  const std::string why = std::strerror(errno);
  close(file);
  return absl::Status(code, why);
}

absl::Status WriteFileAtomically(const std::string& wanted, absl::string_view content) {
  const absl::optional<std::string> path = FileToReplace(wanted);
  if (!path.has_value()) {
    const absl::StatusOr<int> file = OpenInPlace(wanted, O_APPEND);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat("cannot write ", wanted, ": ", file.status().message()));
    }
    return WriteAndClose(*file, content, /*sync=*/false) ? absl::OkStatus() : Failed(wanted);
  }
  const std::string temporary = TemporaryBeside(*path);
  if (!WriteTo(temporary, O_CREAT | O_TRUNC, content, /*sync=*/true) ||
      std::rename(temporary.c_str(), path->c_str()) != 0) {
    const absl::Status failed = Failed(*path);
    std::remove(temporary.c_str());
    return failed;
  }
  SyncFolderOf(*path);
  return absl::OkStatus();
}

std::string WhyNotWritable(const std::string& wanted) {
  struct stat found;
  if (stat(wanted.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return std::strerror(EISDIR);
  const absl::optional<std::string> path = FileToReplace(wanted);
  if (!path.has_value()) return WhyNotWritableInPlace(wanted);
  if (IsKeptByAnother(*path)) return "a file of another user's in a folder with the sticky bit";
  const std::string temporary = TemporaryBeside(*path);
  const bool written = WriteTo(temporary, O_CREAT | O_TRUNC, "probe", /*sync=*/false);
  const std::string why = written ? "" : std::strerror(errno);
  std::remove(temporary.c_str());
  return why;
}

std::string FileReplacedAt(const std::string& wanted) {
  const absl::optional<std::string> path = FileToReplace(wanted);
  if (!path.has_value()) return "";
  char folder[PATH_MAX];
  if (realpath(FolderOf(*path).c_str(), folder) == nullptr) return *path;
  return absl::StrCat(folder, "/", path->substr(path->rfind('/') + 1));
}

std::string ResolvePath(const std::string& path, const std::string& directory) {
  if (path.empty() || directory.empty() || absl::StartsWith(path, "/")) return path;
  return absl::StrCat(directory, "/", path);
}

namespace {

absl::Status RefuseFor(absl::string_view flag, absl::string_view what, const std::string& path,
                       absl::string_view why) {
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": expected a ", what,
                                                 " that can be written, found ", path, ": ", why));
}

}  // namespace

absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  return RefuseFor(flag, "file", path, WhyNotWritable(path));
}

absl::Status CheckFolderWritable(absl::string_view flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return RefuseFor(flag, "folder", path, error.message());
  return RefuseFor(flag, "folder", path, WhyNotWritable(absl::StrCat(path, "/.probe")));
}

absl::Status CheckDistinct(const std::vector<NamedFile>& outputs,
                           const std::vector<NamedFile>& inputs) {
  std::map<std::string, absl::string_view> flags;  // by file
  for (const NamedFile& input : inputs) {
    if (!input.path.empty()) flags.emplace(FileReplacedAt(input.path), input.flag);
  }
  for (const NamedFile& output : outputs) {
    const std::string file = output.path.empty() ? "" : FileReplacedAt(output.path);
    if (file.empty()) continue;
    const auto [other, is_new] = flags.emplace(file, output.flag);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", output.flag,
                                                   ": expected another file than --", other->second,
                                                   " names, found ", output.path));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
