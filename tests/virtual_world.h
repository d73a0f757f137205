// Processes, threads and time that a seed decides: the floor of a simulated job.
//
// All threads of all processes of the job are fibers of one thread. They run until they wait, or
// until a coin says that another one is due; which one runs next, and whom a signal wakes, is drawn.
// When nobody can run, the clock jumps to the next moment at which somebody can. So a second of
// waiting costs nothing, and the same seed is the same run.

#ifndef GRADSYNC_TESTS_VIRTUAL_WORLD_H_
#define GRADSYNC_TESTS_VIRTUAL_WORLD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/scheduler.h"

namespace gradsync {

class VirtualWorld final : public Scheduler {
 public:
  // With `verbose`, Log() prints what happens.
  VirtualWorld(uint64_t seed, bool verbose);
  ~VirtualWorld() override;

  // Processes are numbered from 0. What a thread starts belongs to its process.
  int AddProcess(std::string name);
  const std::string& name(int process) const { return processes_[process].name; }
  int this_process() const;

  // A thread of the process, from now on.
  void Spawn(int process, std::function<void()> body);
  // The same later: a message that arrives, say. Waits while the process is stopped.
  void After(absl::Duration delay, int process, std::function<void()> body);
  // Happens to the world, on no thread: must not wait. Cannot be stopped.
  void Outside(absl::Duration delay, std::function<void()> event);

  // No thread of the process runs until it is resumed, while the clock goes on.
  void Stop(int process);
  void Resume(int process);
  bool stopped(int process) const { return processes_[process].stopped; }

  // Runs until `done`. Errors: DEADLINE_EXCEEDED when the clock has passed `limit` (since the
  // begin), ABORTED when nothing can happen any more, RESOURCE_EXHAUSTED when too much happens in
  // too little time; each with who waits.
  absl::Status Run(const std::function<bool()>& done, absl::Duration limit);

  // Since the begin.
  absl::Duration elapsed() const;
  // Threads that have not ended.
  size_t threads() const { return fibers_.size(); }
  // Changes of threads, ever.
  int64_t switches() const { return switches_; }

  // Of the calling thread.
  void Sleep(absl::Duration time);
  // Wakes whoever waits for `condition`, and never changes to another thread.
  void WakeQuietly(const void* condition);

  // Below `n`, at least 1.
  uint64_t Draw(uint64_t n) { return random_() % n; }
  bool Chance(double probability);
  absl::Duration DrawDuration(absl::Duration least, absl::Duration most);

  bool verbose() const { return verbose_; }
  void Log(absl::string_view what);
  // Prints it, and does no more; for what happens often.
  void Note(absl::string_view what) const;
  // Of all that was logged, printed or not: runs with equal digests were the same run.
  uint64_t digest() const { return digest_; }

  absl::Duration Now() override;
  void Wait(const void* condition, absl::Duration until) override;
  void Wake(const void* condition, bool all) override;
  void Yield() override;
  ThreadId Start(std::function<void()> body) override;
  void Join(ThreadId thread) override;
  ThreadId this_thread() const override;

 private:
  struct Fiber;
  struct Timer {
    int64_t time;
    int64_t number;
    bool operator>(const Timer& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Due {
    int process = -1;  // -1: outside
    std::function<void()> body;
    int64_t fiber = 0;  // or the thread to wake, if it is in its `wait`-th wait still
    int64_t wait = 0;
  };
  struct Process {
    std::string name;
    bool stopped = false;
    std::vector<Fiber*> ready;  // while it is stopped
    std::vector<std::function<void()>> events;
  };

  static void Main(unsigned high, unsigned low);
  Fiber* NewFiber(int process, std::function<void()> body);
  void Ready(Fiber* fiber);
  void Block();
  void MaybePreempt();
  void Unwait(Fiber* fiber);
  void RunFiber(Fiber* fiber);
  void Fire(Due due);
  bool IsOver(const Due& due) const;
  void AddTimer(int64_t time, Due due);
  std::string WhoWaits() const;

  const bool verbose_;
  std::mt19937_64 random_;
  int64_t now_;  // nanoseconds
  int64_t numbers_ = 0;
  int64_t switches_ = 0;
  uint64_t digest_ = 14695981039346656037u;
  std::deque<Process> processes_;
  std::map<int64_t, std::unique_ptr<Fiber>> fibers_;  // by number
  std::vector<Fiber*> ready_;
  std::unordered_map<const void*, std::vector<Fiber*>> waiting_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<Timer>> timers_;
  std::unordered_map<int64_t, Due> due_;  // by timer number
  Fiber* current_ = nullptr;
  struct Context;
  const std::unique_ptr<Context> loop_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_VIRTUAL_WORLD_H_
