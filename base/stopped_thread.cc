#include "base/stopped_thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradsync {
namespace {

// A letter, see proc(5); '\0' for a thread that has ended meanwhile.
char StateOf(absl::string_view thread) {
  const int file = open(absl::StrCat("/proc/self/task/", thread, "/stat").c_str(), O_RDONLY);
  if (file < 0) return '\0';
  char text[256];
  const ssize_t size = read(file, text, sizeof(text));
  close(file);
  const absl::string_view line(text, size < 0 ? 0 : static_cast<size_t>(size));
  const size_t name_end = line.rfind(") ");  // the name may have any characters
  return name_end == line.npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

}  // namespace

int StoppedThread(int before) {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return 0;
  int stopped = 0;
  while (const dirent* const thread = readdir(threads)) {
    if (thread->d_name[0] == '.') continue;
    const char state = StateOf(thread->d_name);
    if (state != 't' && state != 'T') continue;
    stopped = std::atoi(thread->d_name);
    if (stopped == before) break;
  }
  closedir(threads);
  return stopped;
}

}  // namespace gradsync
