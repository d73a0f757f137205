#ifndef GRADSYNC_CORE_BASE_NO_DESCRIPTORS_LEFT_H_
#define GRADSYNC_CORE_BASE_NO_DESCRIPTORS_LEFT_H_

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace gradsync {

// For as long as it lives this process can open no file and no socket. For tests.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDIN_FILENO);  // the smallest that is free
    close(next);
    rlimit none = before_;
    // Others may be closed meanwhile, by threads of libraries; the standard ones are not.
    none.rlim_cur = static_cast<rlim_t>(std::min(next, STDERR_FILENO + 1));
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_NO_DESCRIPTORS_LEFT_H_
