#include "core/base/thread_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace gradsync {

// See proc(5); the flags are those of the kernel's include/linux/sched.h.
ThreadState ReadThreadState(const std::string& folder) {
  constexpr unsigned kEnding = 0x4;
  const int file = open((folder + "/stat").c_str(), O_RDONLY);
  if (file < 0) return {};
  char text[256];
  const ssize_t size = read(file, text, sizeof(text));
  close(file);
  const std::string line(text, size < 0 ? 0 : static_cast<size_t>(size));
  const size_t name_end = line.rfind(") ");  // the name may have any characters
  if (name_end == line.npos) return {};
  char state = '\0';
  unsigned flags = 0;
  std::sscanf(line.c_str() + name_end + 2, "%c %*d %*d %*d %*d %*d %u", &state, &flags);
  return {state == 't' || state == 'T', (flags & kEnding) != 0};
}

}  // namespace gradsync
