// One rank's turns in an exchange over shared memory: post that a bucket's gradients are
// complete, reduce the chunks that are this rank's when all have posted theirs, copy results that
// others have finished. Whichever thread is at hand takes the turns, the engine's own or one that
// waits for a handle, and a bucket is done when nothing is left to take. docs/internals/shared_memory.md
// has the protocol and what each part of it gains.

#include "core/shared_memory/window_engine.h"

#include <sched.h>

#include <utility>

#include "core/base/process_resources.h"

namespace gradsync {
namespace {

// Where each rank has a core of its own, one that waits has nothing better to do than to look.
constexpr absl::Duration kGuestSpin = absl::Microseconds(50);

// A small bucket is first awaited by looks alone, 50 us of them, between which others may have this
// core: often where ranks share cores, else in case that one that is waited for has none.
constexpr int kYields = 32;
constexpr int kLooksPerYield = 64;

// What one member does alone is left to the one that launched it last, which is at it, for so many of
// these looks: two that reach for it at once are slower.
constexpr int kLooksBeforeHelp = 32;

// After so many waits in a row that were over once the core had been given away, the rank that is
// waited for is on this core, though there is one for each. As long as both only look, they stay there;
// who sleeps is placed anew when it is woken.
constexpr int kYieldsOfSharedCore = 2;

bool SharesCores(const WindowGroup& group) { return group.workers() > HostCores(); }

}  // namespace

WindowEngine::WindowEngine(WindowEngineOptions options)
    : windows_(std::move(options.windows)),
      owner_(std::move(options.owner)),
      report_(std::move(options.report)),
      shares_cores_(options.shares_cores.has_value() ? *options.shares_cores
                                                     : SharesCores(windows_->group())),
      has_servers_(windows_->group().owners().first > 0),
      worker_(windows_.get()) {}

std::shared_ptr<WindowEngine> WindowEngine::Start(WindowEngineOptions options) {
  const std::shared_ptr<WindowEngine> engine(new WindowEngine(std::move(options)));
  engine->worker_.SetDriver(engine);
  engine->thread_ = std::thread([raw = engine.get()] { raw->Loop(); });
  return engine;
}

WindowEngine::~WindowEngine() { Stop(); }

void WindowEngine::Halt() {
  halted_.store(true, std::memory_order_release);
  if (owner_ != nullptr) owner_->Halt();
  worker_.Halt();
}

void WindowEngine::Fail(const absl::Status& status) {
  Halt();
  worker_.Fail(status);
}

void WindowEngine::Stop() {
  Halt();
  if (thread_.joinable()) thread_.join();
  // A guest, too, leaves soon.
  MutexLock lock(&mutex_);
  ++turn_awaited_;
  while (turn_taken_) turn_ends_.Wait(&mutex_);
  --turn_awaited_;
}

SyncHandle WindowEngine::Launch(const StepOptions& step, int bucket) {
  if (windows_->group().IsPosted(bucket, worker_.launched() + 1)) return LaunchPosted(step, bucket);
  const bool last = worker_.Post(step, bucket);
  const AtOnce at_once = last ? DoAtOnce(worker_.launched() + 1, bucket) : AtOnce::kNot;
  if (at_once == AtOnce::kComplete) return ResolvedHandle(absl::OkStatus());
  SyncHandle handle = worker_.Begin(step, bucket);
  if (last && at_once == AtOnce::kNot) signals().RingOwners();
  return handle;
}

// The turn is taken first: that waits for what this core has stored, and others' posts should not be
// waited for after the own one has arrived but meanwhile.
SyncHandle WindowEngine::LaunchPosted(const StepOptions& step, int bucket) {
  const int64_t launch = worker_.launched() + 1;
  const bool turn = TryTakeTurn();
  const bool last = worker_.Post(step, bucket);
  bool complete = false;
  if (turn) {
    if (last) {
      if (owner_->reduced() + 1 != launch || worker_.next() != launch) CatchUp(launch);
      if (owner_->reduced() + 1 == launch && !halted()) Check(owner_->ReducePosts(launch, bucket));
      complete = owner_->completed() == launch && worker_.Complete();
    }
    EndTurn();
  }
  if (complete) {
    signals().WakeOtherGuests();  // who have their own part to do
    return ResolvedHandle(absl::OkStatus());
  }
  SyncHandle handle = worker_.Begin(step, bucket);
  if (last) {
    // Each worker, and not servers, has to do its part.
    signals().RingOtherWorkers();
    signals().RingSelf();
  }
  return handle;
}

// The first step is its servers' in any case: after it they are known to be there, and to count.
bool WindowEngine::DoesAtOnce(int64_t launch, int bucket) const {
  if (owner_ == nullptr || !owner_->can_help()) return false;
  if (has_servers_ && launch <= static_cast<int64_t>(windows_->plan().buckets().size())) {
    return false;
  }
  return windows_->group().IsSmall(bucket);
}

WindowEngine::AtOnce WindowEngine::DoAtOnce(int64_t launch, int bucket) {
  if (!DoesAtOnce(launch, bucket)) return AtOnce::kNot;
  owner_->FetchAhead(bucket);
  if (!TryTakeTurn()) return AtOnce::kNot;
  CatchUp(launch);
  AtOnce at_once = AtOnce::kNot;
  if (owner_->reduced() + 1 >= launch) {
    const bool alone = windows_->sole_progress(bucket) != nullptr;
    if (!alone) signals().RingOtherGuests();  // who waits does its own part meanwhile
    while (owner_->reduced() < launch && owner_->CanReduce() && !halted()) {
      Work(/*help=*/alone || !windows_->Done(bucket, launch));
    }
    const bool done = owner_->completed() == launch || windows_->Done(bucket, launch);
    at_once = done && worker_.Complete() ? AtOnce::kComplete : AtOnce::kUnderWay;
  }
  EndTurn();
  return at_once;
}

// Leaves behind what others have done for this rank, which nobody has told it of, and what they have posted.
void WindowEngine::CatchUp(int64_t before) {
  for (int64_t launch = owner_->reduced() + 1; launch < before && !halted(); ++launch) {
    const int bucket = BucketOf(launch);
    if (windows_->group().IsPosted(bucket, launch)) {
      if (!owner_->CanReduce()) break;
      Work(/*help=*/false);
    } else {
      if (!windows_->Done(bucket, launch)) break;
      owner_->LeaveBehind();
    }
  }
  worker_.Resolve();
}

int WindowEngine::BucketOf(int64_t launch) const {
  return static_cast<int>((launch - 1) % static_cast<int64_t>(windows_->plan().buckets().size()));
}

bool WindowEngine::HasWork() const {
  return (owner_ != nullptr && owner_->CanReduce()) || worker_.CanResolve();
}

// As the owner of nothing, a worker that has servers would only pass by.
bool WindowEngine::HelpsWithNext() const {
  if (!has_servers_) return shares_cores_;
  if (owner_ == nullptr) return false;
  const int64_t next = owner_->reduced() + 1;
  return DoesAtOnce(next, BucketOf(next));
}

void WindowEngine::Work(bool help) {
  worker_.Resolve();
  if (owner_ == nullptr || !owner_->CanReduce()) return;
  absl::Status reduced = owner_->Reduce(help);
  worker_.Resolve();
  Check(std::move(reduced));
}

void WindowEngine::Check(absl::Status reduced) {
  if (reduced.ok()) return;
  Halt();
  report_(std::move(reduced));
}

void WindowEngine::Loop() {
  while (true) {
    signals().Await(
        WindowSignals::kThread,
        [this] { return halted() || (!signals().guest_here() && HasWork()); },
        worker_.waiting() ? kWindowSpin : absl::ZeroDuration());
    if (halted()) return;
    if (!TakeTurn([this] { return halted(); }, Deadline::Never())) continue;
    if (HasWork()) Work(HelpsWithNext());
    EndTurn();
  }
}

void WindowEngine::Drive(absl::FunctionRef<bool()> done, Deadline deadline) {
  if (guest_.exchange(true)) return;
  signals().GuestComes();
  if (TakeTurn(done, deadline)) {
    while (!halted() && !done()) {
      signals().Await(
          WindowSignals::kGuest, [&] { return halted() || done() || HasWork(); },
          shares_cores_ || beside_other() ? absl::ZeroDuration() : kGuestSpin, deadline);
      waits_ended_by_yield_ = 0;
      if (halted() || done()) break;
      if (HasWork()) {
        Work(HelpsWithNext());
      } else if (deadline.passed()) {
        break;
      }
    }
    EndTurn();
  }
  signals().GuestLeaves();
  guest_ = false;
  if (!halted() && HasWork()) signals().RingSelf();
}

// Others are not told that this thread is here: it sleeps nowhere, and they ring no thread for a
// small bucket. Their counters are looked at only for what is launched here, so that those who are
// ahead need not fetch them back to count on.
void WindowEngine::LookClosely(absl::FunctionRef<bool()> done) {
  const int64_t next = worker_.next();
  const int bucket = BucketOf(next);
  if (!DoesAtOnce(next, bucket) || !TryTakeTurn()) return;
  const int looks_per_yield = shares_cores_ ? 1 : kLooksPerYield;
  const int looks = beside_other() ? 0 : kYields * looks_per_yield;
  const bool helps_at_once = shares_cores_ || windows_->group().IsPosted(bucket, next) ||
                             windows_->sole_progress(bucket) == nullptr;
  bool yielded = false;
  for (int look = 1; look <= looks && !halted(); ++look) {
    if (worker_.CanResolve()) {
      worker_.Resolve();
    } else if ((helps_at_once || look > kLooksBeforeHelp) &&
               owner_->reduced() < worker_.launched() && owner_->CanReduce()) {
      Work(HelpsWithNext());
    }
    if (done()) {
      waits_ended_by_yield_ = yielded ? waits_ended_by_yield_ + 1 : 0;
      break;
    }
    yielded = look % looks_per_yield == 0;
    if (yielded) {
      sched_yield();
    } else {
      __builtin_ia32_pause();
    }
  }
  EndTurn();
}

bool WindowEngine::beside_other() const {
  return !shares_cores_ && waits_ended_by_yield_ >= kYieldsOfSharedCore;
}

void WindowEngine::Look() {
  if (!worker_.CanResolve() || !TryTakeTurn()) return;
  worker_.Resolve();
  EndTurn();
}

bool WindowEngine::TakeTurn(absl::FunctionRef<bool()> done, Deadline deadline) {
  if (TryTakeTurn()) return true;
  MutexLock lock(&mutex_);
  ++turn_awaited_;
  bool taken = TryTakeTurn();
  while (!taken) {
    if (turn_ends_.WaitWithDeadline(&mutex_, deadline) || done() || halted()) break;
    taken = TryTakeTurn();
  }
  --turn_awaited_;
  return taken;
}

bool WindowEngine::TryTakeTurn() { return !turn_taken_.exchange(true); }

// Who comes to wait after the turn has ended takes it: it counts itself before it tries.
void WindowEngine::EndTurn() {
  turn_taken_ = false;
  if (turn_awaited_ == 0) return;
  MutexLock lock(&mutex_);
  turn_ends_.SignalAll();
}

}  // namespace gradsync
