#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_ENGINE_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_ENGINE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/plan/plan.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_owner.h"
#include "core/shared_memory/window_worker.h"

namespace gradsync {

struct WindowEngineOptions {
  std::shared_ptr<GroupWindows> windows;
  // Of a ring's rank; of a worker that does servers' chunks; null where servers do all of them.
  std::shared_ptr<WindowOwner> owner;
  // Something went wrong on this rank. Must not block; Halt() and Fail() follow.
  std::function<void(absl::Status)> report;
  // Whether this process has fewer cores than the group has ranks; found out when not given.
  absl::optional<bool> shares_cores;
};

// A rank's part in an exchange over windows: the worker's half (window_worker.h) and, in a ring,
// the owner's (core/shared_memory/window_owner.h).
//
// Both are done by a thread of this object while the rank computes, and by the thread that waits
// for a handle while one does: that saves two changes of thread per exchange. The engine's thread
// sleeps while there is nothing to do.
//
// A small bucket is done at once, by the rank that launches it last, helped by those that wait for
// it; servers that do not update are not asked. Between ranks that have cores nothing of it calls
// the kernel, and nobody touches memory that another one reads but to tell it something. A tiny
// one is done by each rank for itself, when all have posted it (window_posts.h).
//
// When the host has fewer cores than ranks, whoever has a core also does the chunks of those who
// have none.
//
// Thread-safe.
class WindowEngine : public SyncDriver {
 public:
  static std::shared_ptr<WindowEngine> Start(WindowEngineOptions options);

  // As Stop().
  ~WindowEngine() override;

  WindowEngine(const WindowEngine&) = delete;
  WindowEngine& operator=(const WindowEngine&) = delete;

  // As GradientSync::Launch(); the caller has checked the order.
  SyncHandle Launch(const StepOptions& step, int bucket);

  // As those of WindowWorker.
  void PullParameters() { worker_.PullParameters(); }
  void Gather(int bucket) { worker_.Gather(bucket); }
  void StoreParameters(int bucket) { worker_.StoreParameters(bucket); }
  WireStats wire_stats() const { return worker_.wire_stats(); }

  // Nothing completes from here on: handles, those of later launches too, wait for Fail(), which
  // must follow.
  void Halt();

  // Ends everything: open handles, and all later ones, resolve with `status`, which is not OK. The
  // first call counts.
  void Fail(const absl::Status& status);

  // Halts, and waits for the thread. Must not be called from `report`.
  void Stop();

  void Drive(absl::FunctionRef<bool()> done, Deadline deadline) override;
  void Look() override;
  void LookClosely(absl::FunctionRef<bool()> done) override;

 private:
  explicit WindowEngine(WindowEngineOptions options);

  void Loop();
  bool HasWork() const;
  void Work(bool help);
  void Check(absl::Status reduced);
  SyncHandle LaunchPosted(const StepOptions& step, int bucket);
  bool DoesAtOnce(int64_t launch, int bucket) const;
  // What became of a launch that is to be done at once: kNot is owners' to do, kUnderWay somebody's who
  // has taken the rest of it.
  enum class AtOnce { kNot, kUnderWay, kComplete };
  AtOnce DoAtOnce(int64_t launch, int bucket);
  bool HelpsWithNext() const;
  void CatchUp(int64_t before);
  int BucketOf(int64_t launch) const;
  bool TakeTurn(absl::FunctionRef<bool()> done, Deadline deadline);
  bool TryTakeTurn();
  void EndTurn();
  bool beside_other() const;
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  WindowSignals& signals() const { return windows_->signals(); }

  const std::shared_ptr<GroupWindows> windows_;
  const std::shared_ptr<WindowOwner> owner_;
  const std::function<void(absl::Status)> report_;
  const bool shares_cores_;
  const bool has_servers_;
  WindowWorker worker_;
  std::atomic<bool> halted_{false};
  std::atomic<bool> guest_{false};

  int waits_ended_by_yield_ = 0;  // in a row; changed by whoever has the turn

  std::atomic<bool> turn_taken_{false};  // whoever took it may work
  std::atomic<int> turn_awaited_{0};     // by so many threads, which turn_ends_ is for
  Mutex mutex_;
  CondVar turn_ends_;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_ENGINE_H_
