// A wall clock that somebody sets again and again, for LD_PRELOAD: by what the environment variable
// STEP_SECONDS says, forward or back, each kPeriod since the program first asked. The machine's own
// clock stays as it is.
//
// What the C library and the kernel do when CLOCK_REALTIME is set is done here, too: who waits
// until a time of that clock waits for less, or for longer. They get what they ask for in slices,
// with wake-ups between them that they must expect anyway.
//
// Raw system calls only: it runs before any library of the program is ready.

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int64_t kSecond = 1000000000;
constexpr int64_t kPeriod = kSecond / 20;
constexpr int64_t kSlice = kSecond / 100;
// No machine has been up for so long, and all dates are later: which clock a time is of.
constexpr int64_t kEarliestDate = 1000000000;

// None before libraries of the program are ready.
int64_t step_seconds = 0;

__attribute__((constructor)) void ReadStep(int, char**, char** environment) {
  constexpr char kName[] = "STEP_SECONDS=";
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, kName, sizeof(kName) - 1) == 0) {
      step_seconds = std::atoll(*environment + sizeof(kName) - 1);
    }
  }
}

// Returns -errno.
int64_t Call(int64_t number, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0,
             int64_t e = 0, int64_t f = 0) {
  int64_t result;
  register int64_t r10 asm("r10") = d;
  register int64_t r8 asm("r8") = e;
  register int64_t r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

int64_t Return(int64_t result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

int64_t ToNanos(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

timespec ToTimespec(int64_t nanos) { return {nanos / kSecond, nanos % kSecond}; }

int64_t True(clockid_t clock) {
  timespec now;
  Call(SYS_clock_gettime, clock, reinterpret_cast<int64_t>(&now));
  return ToNanos(now);
}

int64_t WallClock() {
  static std::atomic<int64_t> begin{0};
  const int64_t now = True(CLOCK_MONOTONIC);
  int64_t never = 0;
  begin.compare_exchange_strong(never, now);
  return True(CLOCK_REALTIME) + (now - begin) / kPeriod * step_seconds * kSecond;
}

// The end of the next slice of a wait until `date`, by CLOCK_MONOTONIC.
timespec NextSlice(int64_t date) {
  return ToTimespec(True(CLOCK_MONOTONIC) + std::clamp<int64_t>(date - WallClock(), 0, kSlice));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
    return static_cast<int>(Return(Call(SYS_clock_gettime, clock, reinterpret_cast<int64_t>(now))));
  }
  *now = ToTimespec(WallClock());
  return 0;
}

int gettimeofday(timeval* now, void*) noexcept {
  const int64_t nanos = WallClock();
  *now = {nanos / kSecond, nanos % kSecond / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  const time_t seconds = WallClock() / kSecond;
  if (now != nullptr) *now = seconds;
  return seconds;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  if (until->tv_sec < kEarliestDate) {
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
  }
  const timespec slice = NextSlice(ToNanos(*until));
  const int result = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &slice);
  return result == ETIMEDOUT && WallClock() < ToNanos(*until) ? 0 : result;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  int64_t a[6];
  for (int64_t& argument : a) argument = va_arg(list, int64_t);
  va_end(list);
  if (number != SYS_futex || (a[1] & FUTEX_CLOCK_REALTIME) == 0 || a[3] == 0) {
    return Return(Call(number, a[0], a[1], a[2], a[3], a[4], a[5]));
  }
  const int64_t until = ToNanos(*reinterpret_cast<const timespec*>(a[3]));
  const timespec slice = NextSlice(until);
  const int64_t result = Call(number, a[0], a[1] & ~int64_t{FUTEX_CLOCK_REALTIME}, a[2],
                              reinterpret_cast<int64_t>(&slice), a[4], a[5]);
  return Return(result == -ETIMEDOUT && WallClock() < until ? -EINTR : result);
}

}  // extern "C"
