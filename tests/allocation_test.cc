// Steps over shared memory allocate nothing, on any thread: not where gradients are launched and
// waited for, nor in the engines, the servers and the threads that watch over members.

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "allreduce/shm_gradient_sync.h"
#include "gtest/gtest.h"
#include "links/in_memory_store.h"
#include "links/in_process_stream.h"
#include "links/window_mesh.h"
#include "links/window_signals.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"

namespace {

std::atomic<int64_t> allocations{0};

void* Allocate(size_t bytes, size_t alignment) {
  allocations.fetch_add(1);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

// All others of the library come here.
void* operator new(size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace gradsync {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 20;

struct Case {
  std::string topology;
  UpdateSite site;
  double max_norm;
};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.topology,
                      info.param.site == UpdateSite::kOwner ? "_owner" : "_worker",
                      info.param.max_norm > 0 ? "_clips" : "");
}

class AllocationTest : public testing::TestWithParam<Case> {
 protected:
  AllocationTest() : store_(NewInMemoryStore()) {
    pthread_barrier_init(&barrier_, nullptr, kWorkers);
    if (GetParam().topology != "ps") return;
    PsOptions base;
    base.update_site = GetParam().site;
    base.windows = true;
    base.connections = 1;
    servers_.emplace(NewInProcessLink(), kWorkers, 2, base);
  }
  ~AllocationTest() override { pthread_barrier_destroy(&barrier_); }

  std::unique_ptr<GradientSync> Create(int rank) {
    if (servers_.has_value()) return servers_->Worker(rank);
    ShmRingOptions options;
    options.group.rank = rank;
    options.group.world_size = kWorkers;
    options.group.run_id = "allocations";
    options.group.store = store_;
    options.update_site = GetParam().site;
    return *CreateShmRingGradientSync(options);
  }

  // As a training loop does: the handles of one step are kept until those of the next take their
  // place.
  void Step(GradientSync& sync, int64_t number, std::vector<SyncHandle>* handles) {
    StepOptions step;
    step.step = number;
    step.lr = 0.1;
    step.max_norm = GetParam().max_norm;
    handles->clear();
    for (size_t bucket = 0; bucket < plan_.buckets().size(); ++bucket) {
      handles->push_back(sync.Launch(step, static_cast<int>(bucket)));
    }
    for (const SyncHandle& handle : *handles) ASSERT_EQ(handle.Wait(Soon()), absl::OkStatus());
  }

  void AwaitAll() { pthread_barrier_wait(&barrier_); }

  const Plan plan_ = UnevenPlan(kWorkers);
  const std::shared_ptr<KeyValueStore> store_;
  absl::optional<PsGroup> servers_;
  pthread_barrier_t barrier_;
};

TEST_P(AllocationTest, AStepAllocatesNothing) {
  int64_t before = 0;
  int64_t after = 0;
  RunRanks(kWorkers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = Create(rank);
    EXPECT_TRUE(sync->Bind(plan_, Soon()).ok());
    EXPECT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    std::vector<SyncHandle> handles;
    handles.reserve(plan_.buckets().size());
    int64_t number = 0;
    while (number < 3) Step(*sync, ++number, &handles);
    AwaitAll();
    if (rank == 0) before = allocations;
    AwaitAll();
    while (number < 3 + kSteps) Step(*sync, ++number, &handles);
    AwaitAll();
    if (rank == 0) after = allocations;
    AwaitAll();
    handles.clear();
    EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
  EXPECT_EQ(after - before, 0) << "in " << kSteps << " steps of " << kWorkers << " ranks";
}

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, AllocationTest,
    testing::Values(Case{"ring", UpdateSite::kWorker, 0}, Case{"ring", UpdateSite::kOwner, 0},
                    Case{"ring", UpdateSite::kOwner, 1}, Case{"ps", UpdateSite::kWorker, 0},
                    Case{"ps", UpdateSite::kOwner, 0}, Case{"ps", UpdateSite::kOwner, 1}),
    NameOf);

TEST(WindowMeshAllocationTest, WatchingOverMembersAllocatesNothing) {
  constexpr int kMembers = 3;
  constexpr size_t kBytes = 8192;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  std::vector<std::string> addresses;
  for (int self = 0; self < kMembers; ++self) {
    WindowMeshOptions options;
    for (int i = 0; i < kMembers; ++i) {
      options.members.push_back({absl::StrCat("rank ", i), true, kBytes});
    }
    options.self = self;
    options.window = *Window::Create(kBytes);
    options.silence = absl::Seconds(2);
    options.on_lost = [](const absl::Status&) {};
    meshes.push_back(*WindowMesh::Create(std::move(options)));
    addresses.push_back(meshes.back()->address());
  }
  RunRanks(kMembers, [&](int self) {
    EXPECT_EQ(meshes[self]->Connect(addresses, Soon()), absl::OkStatus());
  });
  const auto await_beats = [&](uint32_t beats) {
    for (int self = 0; self < kMembers; ++self) {
      const auto* control =
          reinterpret_cast<const WindowControl*>(meshes[self]->window(self)->data());
      const uint32_t first = control->heartbeat.value;
      while (control->heartbeat.value - first < beats) std::this_thread::yield();
    }
  };
  await_beats(1);
  const int64_t before = allocations;
  await_beats(1);
  EXPECT_EQ(allocations - before, 0);
  for (const auto& mesh : meshes) mesh->Leave();
}

}  // namespace
}  // namespace gradsync
