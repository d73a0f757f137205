#include "benchmarks/ranks/start_line.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"

namespace gradsync {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr absl::Duration kSpread = absl::Milliseconds(50);

void FutexWait(std::atomic<uint32_t>* word, uint32_t value, absl::Duration patience) {
  const timespec timeout = absl::ToTimespec(patience);
  syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

absl::Status ErrnoStatus(const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("start line ", path));
}

}  // namespace

struct StartLine::Shared {
  std::atomic<uint32_t> arrived;  // in this round
  std::atomic<uint32_t> round;
};

absl::StatusOr<std::unique_ptr<StartLine>> StartLine::Open(const std::string& path, int ranks) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(path);
  // Whoever comes later finds the size it wants, and what others have written.
  void* memory = MAP_FAILED;
  if (ftruncate(fd, sizeof(Shared)) == 0) {
    memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const absl::Status failed = memory == MAP_FAILED ? ErrnoStatus(path) : absl::OkStatus();
  close(fd);
  if (!failed.ok()) return failed;
  return std::unique_ptr<StartLine>(new StartLine(static_cast<Shared*>(memory), ranks));
}

StartLine::~StartLine() { munmap(shared_, sizeof(Shared)); }

absl::Status StartLine::Wait(Deadline deadline) {
  const uint32_t round = shared_->round.load();
  if (shared_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(ranks_)) {
    shared_->arrived = 0;
    shared_->round.fetch_add(1);
    FutexWakeAll(&shared_->round);
    return absl::OkStatus();
  }
  const MonotonicTime spin_until = MonotonicTime::Now() + kSpin;
  while (shared_->round.load() == round) {
    const MonotonicTime now = MonotonicTime::Now();
    if (now < spin_until) {
      sched_yield();  // a rank that is still to come may want this core
      continue;
    }
    if (now >= deadline.time()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "start line: expected ", ranks_, " ranks, found ", shared_->arrived.load(), " in time"));
    }
    FutexWait(&shared_->round, round, deadline.time() - now);
  }
  return absl::OkStatus();
}

void SpreadOverCores() {
  for (const Deadline end = Deadline::In(kSpread); !end.passed();) {
  }
}

}  // namespace gradsync
