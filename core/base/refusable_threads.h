#ifndef GRADSYNC_CORE_BASE_REFUSABLE_THREADS_H_
#define GRADSYNC_CORE_BASE_REFUSABLE_THREADS_H_

namespace gradsync {

// While one of these lives, this thread may fail to start another one, which it can do without: the
// failure is then its own to handle (std::system_error), and does not end the program
// (core/base/last_words.h). For scopes; each thread has its own.
class RefusableThreads {
 public:
  RefusableThreads() { ++depth_; }
  ~RefusableThreads() { --depth_; }
  RefusableThreads(const RefusableThreads&) = delete;
  RefusableThreads& operator=(const RefusableThreads&) = delete;

  static bool allowed() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_REFUSABLE_THREADS_H_
