#include "shared_memory/window_engine.h"

#include <utility>

namespace gradsync {
namespace {

// Where each rank has a core of its own, one that waits has nothing better to do than to look.
constexpr absl::Duration kGuestSpin = absl::Microseconds(50);

bool SharesCores(const WindowGroup& group) {
  return group.workers() > static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

WindowEngine::WindowEngine(WindowEngineOptions options)
    : windows_(std::move(options.windows)),
      owner_(std::move(options.owner)),
      report_(std::move(options.report)),
      shares_cores_(options.shares_cores.has_value() ? *options.shares_cores
                                                     : SharesCores(windows_->group())),
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
  while (turn_taken_) turn_ends_.Wait(&mutex_);
}

SyncHandle WindowEngine::Launch(const StepOptions& step, int bucket) {
  WindowWorker::Launched launched = worker_.Launch(step, bucket);
  if (launched.last && !DoSmall(bucket)) signals().RingOwners();
  return std::move(launched.handle);
}

bool WindowEngine::DoSmall(int bucket) {
  if (owner_ == nullptr || !owner_->can_help() || !owner_->IsSmall(bucket) || !TryTakeTurn()) {
    return false;
  }
  CatchUp();
  const int64_t next = owner_->reduced() + 1;
  const bool is_next = BucketOf(next) == bucket;
  if (is_next) signals().RingOtherGuests();  // who waits does its own part meanwhile
  while (is_next && owner_->reduced() < next && owner_->CanReduce() && !halted()) Work(true);
  EndTurn();
  return is_next;
}

// Leaves behind what others have done for this rank, which nobody has told it of.
void WindowEngine::CatchUp() {
  while (!halted() && windows_->Done(BucketOf(owner_->reduced() + 1), owner_->reduced() + 1)) {
    Work(false);
  }
}

int WindowEngine::BucketOf(int64_t launch) const {
  return static_cast<int>((launch - 1) % static_cast<int64_t>(windows_->plan().buckets().size()));
}

bool WindowEngine::HasWork() const {
  return (owner_ != nullptr && owner_->CanReduce()) || worker_.CanResolve();
}

void WindowEngine::Work(bool help) {
  worker_.Resolve();
  if (owner_ == nullptr || !owner_->CanReduce()) return;
  absl::Status reduced = owner_->Reduce(help);
  worker_.Resolve();
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
    if (!TryTakeTurn()) continue;
    if (HasWork()) Work(shares_cores_);
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
          shares_cores_ ? absl::ZeroDuration() : kGuestSpin, deadline);
      if (halted() || done()) break;
      if (HasWork()) {
        Work(shares_cores_);
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

void WindowEngine::Look() {
  if (!worker_.CanResolve() || !TryTakeTurn()) return;
  worker_.Resolve();
  EndTurn();
}

bool WindowEngine::TakeTurn(absl::FunctionRef<bool()> done, Deadline deadline) {
  MutexLock lock(&mutex_);
  while (turn_taken_) {
    if (turn_ends_.WaitWithDeadline(&mutex_, deadline) || done() || halted()) return false;
  }
  turn_taken_ = true;
  return true;
}

bool WindowEngine::TryTakeTurn() {
  MutexLock lock(&mutex_);
  if (turn_taken_) return false;
  turn_taken_ = true;
  return true;
}

void WindowEngine::EndTurn() {
  MutexLock lock(&mutex_);
  turn_taken_ = false;
  turn_ends_.SignalAll();
}

}  // namespace gradsync
