#include "allreduce/shm_engine.h"

namespace gradsync {
namespace {

std::vector<BucketMemory> OwnMemory(const GroupWindows& windows) {
  std::vector<BucketMemory> memory;
  for (int bucket = 0; bucket < static_cast<int>(windows.plan().buckets().size()); ++bucket) {
    memory.push_back({windows.grad(windows.self(), bucket), windows.param(windows.self(), bucket),
                      windows.plan().buckets()[bucket].numel});
  }
  return memory;
}

// A rank is last in the fold of its own chunks, so what is to be updated lies in its own window.
ChunkUpdater UpdaterOf(RingOwner* owner, UpdateSite site) {
  if (site == UpdateSite::kWorker) return nullptr;
  return [owner](size_t chunk, float*, const float*, const StepOptions& step) {
    owner->Update(owner->chunks()[chunk], step);
  };
}

}  // namespace

ShmEngine::ShmEngine(ShmEngineOptions options)
    : report_(options.report),
      windows_(options.group, options.rank, std::move(options.windows)),
      owner_(windows_.plan(), options.rank, options.update_site, OwnMemory(windows_)),
      reducer_(&windows_, UpdaterOf(&owner_, options.update_site)),
      worker_(&windows_, std::move(options.report)),
      thread_([this] { Loop(); }) {}

ShmEngine::~ShmEngine() { Stop(); }

void ShmEngine::Halt() {
  halted_.store(true, std::memory_order_release);
  reducer_.Halt();
  worker_.Halt();
}

void ShmEngine::Fail(const absl::Status& status) {
  Halt();
  worker_.Fail(status);
}

void ShmEngine::Stop() {
  Halt();
  if (thread_.joinable()) thread_.join();
}

WireStats ShmEngine::wire_stats() const {
  WireStats stats = worker_.wire_stats();
  stats.tx_bytes += reducer_.stored_bytes();
  stats.tx_messages += reducer_.stored_messages();
  return stats;
}

void ShmEngine::Loop() {
  while (true) {
    windows_.signals().Await(
        [this] { return halted() || reducer_.CanReduce() || worker_.CanResolve(); },
        worker_.patience());
    if (halted()) return;
    worker_.Resolve();
    if (!reducer_.CanReduce()) continue;
    absl::Status reduced = reducer_.Reduce([this] { worker_.Resolve(); });
    if (reduced.ok()) continue;
    Halt();
    return report_(std::move(reduced));
  }
}

}  // namespace gradsync
