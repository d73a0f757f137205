// The ring's exchange without a ring: ranks of one host read each other's gradients where they
// lie. The owner of a chunk adds up all contributions in the order in which a ring would have
// added them (core/plan/stripes.h), so the bits are the same, and writes the result where all
// others read it. core/shared_memory/window_engine.h does both halves; docs/internals/shared_memory.md
// tells how and why.

#include "allreduce/shm_engine.h"

#include <utility>

#include "core/shared_memory/window_owner.h"

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

// A rank is last in the fold of its own chunks, so what is to be updated lies in its own window,
// in its buckets or its shard.
ChunkUpdater UpdaterOf(RingOwner* owner, UpdateSite site) {
  if (site == UpdateSite::kWorker) return nullptr;
  return [owner](size_t chunk, float* param, const float* mean, const StepOptions& step) {
    owner->UpdateAt(chunk, param, mean, step);
  };
}

}  // namespace

ShmEngine::ShmEngine(ShmEngineOptions options)
    : windows_(
          std::make_shared<GroupWindows>(options.group, options.rank, std::move(options.windows))),
      owner_(windows_->plan(), options.rank, options.update_site, OwnMemory(*windows_)),
      engine_(WindowEngine::Start(
          {windows_,
           std::make_shared<WindowOwner>(windows_.get(), UpdaterOf(&owner_, options.update_site),
                                         std::move(options.recorder)),
           std::move(options.report), options.shares_cores})) {}

ShmEngine::~ShmEngine() { Stop(); }

}  // namespace gradsync
