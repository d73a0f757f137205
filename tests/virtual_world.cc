#include "tests/virtual_world.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/sanitizers.h"

#if defined(GRADSYNC_ADDRESS_SANITIZER)
#define GRADSYNC_ASAN_FIBERS 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(GRADSYNC_THREAD_SANITIZER)
#define GRADSYNC_TSAN_FIBERS 1
#include <sanitizer/tsan_interface.h>
#endif

namespace gradsync {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
constexpr absl::Duration kOrigin = absl::Hours(1000);
// A coin of so many sides says whether another thread is due.
constexpr uint64_t kPreempt = 8;
// Far more than any run takes.
constexpr int64_t kMostSwitches = 3000000;

// Stacks of fibers that have ended, for those to come.
std::vector<char*>& FreeStacks() {
  static thread_local std::vector<char*> stacks;
  return stacks;
}

char* TakeStack() {
  std::vector<char*>& stacks = FreeStacks();
  if (!stacks.empty()) {
    char* const stack = stacks.back();
    stacks.pop_back();
    return stack;
  }
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  mprotect(stack, 4096, PROT_NONE);  // a deeper call ends here, and not in another stack
  return static_cast<char*>(stack);
}

int64_t Nanoseconds(absl::Duration time) {
  return time >= absl::Hours(1000000) ? kForever : absl::ToInt64Nanoseconds(time);
}

}  // namespace

struct VirtualWorld::Context {
  ucontext_t context;
  void* fake_stack = nullptr;
  void* tsan = nullptr;
  const void* stack = nullptr;
  size_t size = 0;

  // Leaves `from` for `to`; returns when somebody comes back.
  static void Switch(Context& from, Context& to, bool last) {
#if defined(GRADSYNC_ASAN_FIBERS)
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack, to.size);
#endif
#if defined(GRADSYNC_TSAN_FIBERS)
    __tsan_switch_to_fiber(to.tsan, 0);
#endif
    (void)last;
    swapcontext(&from.context, &to.context);
#if defined(GRADSYNC_ASAN_FIBERS)
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
  }
};

struct VirtualWorld::Fiber {
  Context context;
  int64_t number = 0;
  int process = 0;
  std::function<void()> body;
  char* stack = nullptr;
  const void* condition = nullptr;  // while it waits
  bool waits = false;
  int64_t wait = 0;
  bool ended = false;
  bool joined = false;  // or nobody will
};

VirtualWorld::VirtualWorld(uint64_t seed, bool verbose)
    : verbose_(verbose),
      random_(seed * 0x9e3779b97f4a7c15u + 1),
      now_(absl::ToInt64Nanoseconds(kOrigin)),
      loop_(std::make_unique<Context>()) {
#if defined(GRADSYNC_TSAN_FIBERS)
  loop_->tsan = __tsan_get_current_fiber();
#endif
}

// Fibers that have not ended are forgotten with what is on their stacks; a run that went well has
// none.
VirtualWorld::~VirtualWorld() {
  for (auto& [number, fiber] : fibers_) {
    if (fiber->stack != nullptr) munmap(fiber->stack, kStackBytes);
    if (!fiber->ended) fiber.release();
  }
}

int VirtualWorld::AddProcess(std::string name) {
  processes_.emplace_back().name = std::move(name);
  return static_cast<int>(processes_.size()) - 1;
}

int VirtualWorld::this_process() const { return current_ != nullptr ? current_->process : -1; }

void VirtualWorld::Main(unsigned high, unsigned low) {
  auto* const world = reinterpret_cast<VirtualWorld*>((uint64_t{high} << 32) | low);
  Fiber* const fiber = world->current_;
#if defined(GRADSYNC_ASAN_FIBERS)
  __sanitizer_finish_switch_fiber(nullptr, &world->loop_->stack, &world->loop_->size);
#endif
  fiber->body();
  fiber->body = nullptr;
  fiber->ended = true;
  world->WakeQuietly(fiber);
  Context::Switch(fiber->context, *world->loop_, /*last=*/true);
}

VirtualWorld::Fiber* VirtualWorld::NewFiber(int process, std::function<void()> body) {
  auto owned = std::make_unique<Fiber>();
  Fiber* const fiber = owned.get();
  fiber->number = ++numbers_;
  fiber->process = process;
  fiber->body = std::move(body);
  fiber->stack = TakeStack();
  fiber->context.stack = fiber->stack;
  fiber->context.size = kStackBytes;
#if defined(GRADSYNC_TSAN_FIBERS)
  fiber->context.tsan = __tsan_create_fiber(0);
#endif
  getcontext(&fiber->context.context);
  fiber->context.context.uc_stack.ss_sp = fiber->stack;
  fiber->context.context.uc_stack.ss_size = kStackBytes;
  fiber->context.context.uc_link = nullptr;
  const auto self = reinterpret_cast<uint64_t>(this);
  makecontext(&fiber->context.context, reinterpret_cast<void (*)()>(&VirtualWorld::Main), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  fibers_.emplace(fiber->number, std::move(owned));
  return fiber;
}

void VirtualWorld::Ready(Fiber* fiber) {
  Process& process = processes_[fiber->process];
  (process.stopped ? process.ready : ready_).push_back(fiber);
}

void VirtualWorld::Spawn(int process, std::function<void()> body) {
  Fiber* const fiber = NewFiber(process, std::move(body));
  fiber->joined = true;
  Ready(fiber);
}

void VirtualWorld::AddTimer(int64_t time, Due due) {
  const Timer timer{time, ++numbers_};
  due_.emplace(timer.number, std::move(due));
  timers_.push(timer);
}

void VirtualWorld::After(absl::Duration delay, int process, std::function<void()> body) {
  Due due;
  due.process = process;
  due.body = std::move(body);
  AddTimer(now_ + Nanoseconds(delay), std::move(due));
}

void VirtualWorld::Outside(absl::Duration delay, std::function<void()> event) {
  After(delay, -1, std::move(event));
}

void VirtualWorld::Stop(int number) {
  Process& process = processes_[number];
  if (process.stopped) return;
  process.stopped = true;
  const auto theirs = [&](Fiber* fiber) { return fiber->process == number; };
  std::copy_if(ready_.begin(), ready_.end(), std::back_inserter(process.ready), theirs);
  ready_.erase(std::remove_if(ready_.begin(), ready_.end(), theirs), ready_.end());
}

void VirtualWorld::Resume(int number) {
  Process& process = processes_[number];
  if (!process.stopped) return;
  process.stopped = false;
  for (Fiber* fiber : std::exchange(process.ready, {})) Ready(fiber);
  for (auto& event : std::exchange(process.events, {})) Spawn(number, std::move(event));
}

void VirtualWorld::RunFiber(Fiber* fiber) {
  current_ = fiber;
  ++switches_;
  Context::Switch(*loop_, fiber->context, /*last=*/false);
  current_ = nullptr;
  if (!fiber->ended) return;
#if defined(GRADSYNC_TSAN_FIBERS)
  __tsan_destroy_fiber(fiber->context.tsan);
#endif
  FreeStacks().push_back(std::exchange(fiber->stack, nullptr));
  if (fiber->joined) fibers_.erase(fiber->number);
}

void VirtualWorld::Fire(Due due) {
  if (due.fiber != 0) {
    Fiber* const fiber = fibers_.at(due.fiber).get();
    Unwait(fiber);
    return Ready(fiber);
  }
  if (due.process < 0) return due.body();
  Process& process = processes_[due.process];
  if (process.stopped) {
    process.events.push_back(std::move(due.body));
  } else {
    Spawn(due.process, std::move(due.body));
  }
}

// Whether it would wake a thread from a wait that is over, or one that has ended.
bool VirtualWorld::IsOver(const Due& due) const {
  if (due.fiber == 0) return false;
  const auto found = fibers_.find(due.fiber);
  return found == fibers_.end() || !found->second->waits || found->second->wait != due.wait;
}

absl::Status VirtualWorld::Run(const std::function<bool()>& done, absl::Duration limit) {
  const Scope scope(this);
  const int64_t end = absl::ToInt64Nanoseconds(kOrigin + limit);
  while (!done()) {
    if (switches_ > kMostSwitches) {
      return absl::ResourceExhaustedError(absl::StrCat("too much happens: ", WhoWaits()));
    }
    if (!ready_.empty()) {
      const size_t index = Draw(ready_.size());
      Fiber* const fiber = ready_[index];
      ready_[index] = ready_.back();
      ready_.pop_back();
      RunFiber(fiber);
      continue;
    }
    if (timers_.empty()) return absl::AbortedError(absl::StrCat("nothing goes on: ", WhoWaits()));
    const Timer timer = timers_.top();
    timers_.pop();
    const auto found = due_.find(timer.number);
    Due due = std::move(found->second);
    due_.erase(found);
    if (IsOver(due)) continue;
    if (timer.time > end) {
      return absl::DeadlineExceededError(absl::StrCat("no end in time: ", WhoWaits()));
    }
    now_ = std::max(now_, timer.time);
    Fire(std::move(due));
  }
  return absl::OkStatus();
}

std::string VirtualWorld::WhoWaits() const {
  std::map<std::string, int> threads;
  for (const auto& [number, fiber] : fibers_) ++threads[processes_[fiber->process].name];
  std::string text = absl::StrCat("after ", absl::FormatDuration(elapsed()), ", ");
  for (const auto& [name, count] : threads)
    absl::StrAppend(&text, count, " threads of ", name, ", ");
  return text;
}

absl::Duration VirtualWorld::elapsed() const { return absl::Nanoseconds(now_) - kOrigin; }

void VirtualWorld::Block() { Context::Switch(current_->context, *loop_, /*last=*/false); }

void VirtualWorld::MaybePreempt() {
  if (current_ == nullptr || ready_.empty() || Draw(kPreempt) != 0) return;
  Ready(current_);
  Block();
}

void VirtualWorld::Unwait(Fiber* fiber) {
  if (fiber->condition != nullptr) {
    const auto found = waiting_.find(fiber->condition);
    auto& fibers = found->second;
    fibers.erase(std::find(fibers.begin(), fibers.end(), fiber));
    if (fibers.empty()) waiting_.erase(found);
  }
  fiber->condition = nullptr;
  fiber->waits = false;
}

absl::Duration VirtualWorld::Now() {
  MaybePreempt();
  return absl::Nanoseconds(now_);
}

void VirtualWorld::Wait(const void* condition, absl::Duration until) {
  Fiber* const fiber = current_;
  if (fiber == nullptr) std::abort();  // an event outside has waited
  const int64_t time = Nanoseconds(until);
  if (time <= now_) return MaybePreempt();
  fiber->condition = condition;
  fiber->waits = true;
  ++fiber->wait;
  if (condition != nullptr) waiting_[condition].push_back(fiber);
  if (time != kForever) {
    Due due;
    due.fiber = fiber->number;
    due.wait = fiber->wait;
    AddTimer(time, std::move(due));
  }
  Block();
}

void VirtualWorld::WakeQuietly(const void* condition) {
  const auto found = waiting_.find(condition);
  if (found == waiting_.end()) return;
  const std::vector<Fiber*> fibers = found->second;
  for (Fiber* fiber : fibers) {
    Unwait(fiber);
    Ready(fiber);
  }
}

void VirtualWorld::Wake(const void* condition, bool all) {
  const auto found = waiting_.find(condition);
  if (found != waiting_.end()) {
    if (all) {
      WakeQuietly(condition);
    } else {
      Fiber* const fiber = found->second[Draw(found->second.size())];
      Unwait(fiber);
      Ready(fiber);
    }
  }
  MaybePreempt();
}

void VirtualWorld::Yield() { Sleep(DrawDuration(absl::Nanoseconds(200), absl::Microseconds(5))); }

void VirtualWorld::Sleep(absl::Duration time) {
  Wait(nullptr, absl::Nanoseconds(now_) + std::max(time, absl::Nanoseconds(1)));
}

VirtualWorld::ThreadId VirtualWorld::Start(std::function<void()> body) {
  Fiber* const fiber = NewFiber(current_->process, std::move(body));
  Ready(fiber);
  return fiber->number;
}

void VirtualWorld::Join(ThreadId thread) {
  Fiber* const fiber = fibers_.at(thread).get();
  while (!fiber->ended) Wait(fiber, absl::InfiniteDuration());
  fibers_.erase(thread);
}

VirtualWorld::ThreadId VirtualWorld::this_thread() const { return current_->number; }

bool VirtualWorld::Chance(double probability) {
  return static_cast<double>(Draw(1 << 20)) < probability * (1 << 20);
}

absl::Duration VirtualWorld::DrawDuration(absl::Duration least, absl::Duration most) {
  const int64_t range = absl::ToInt64Nanoseconds(most - least);
  return least + absl::Nanoseconds(range <= 0 ? 0 : static_cast<int64_t>(Draw(range + 1)));
}

void VirtualWorld::Log(absl::string_view what) {
  for (const char c : what) digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  digest_ = (digest_ ^ static_cast<uint64_t>(now_)) * 1099511628211u;
  Note(what);
}

void VirtualWorld::Note(absl::string_view what) const {
  if (!verbose_) return;
  const std::string who = current_ != nullptr ? processes_[current_->process].name : "world";
  std::printf("%14.9f  %-8s  %.*s\n", absl::ToDoubleSeconds(elapsed()), who.c_str(),
              static_cast<int>(what.size()), what.data());
}

}  // namespace gradsync
