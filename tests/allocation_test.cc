// Steps allocate nothing, on any thread: not where gradients are launched and waited for, nor in
// the engines, the servers and the threads that watch over members. Over shared memory that is all
// there is; over gRPC, which allocates for every message, what is ours is counted: an allocation
// belongs to the innermost caller that is not the C++ library, Abseil or protobuf's.

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/group/key_value_store.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/shared_memory/window_mesh.h"
#include "core/shared_memory/window_signals.h"
#include "gtest/gtest.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"

namespace {

std::atomic<int64_t> allocations{0};

// Only while it is set are callers looked at, which takes time. What gRPC's own threads do without
// being asked counts as gRPC's.
std::atomic<bool> attributing{false};
std::atomic<int64_t> own_allocations{0};
thread_local bool looking = false;  // at the callers of an allocation

// Of the last ones that were ours, for messages.
constexpr int kFrames = 24;
constexpr int kCallers = 8;
struct Callers {
  void* frames[kFrames];
  int count = 0;
} callers[kCallers];

bool Contains(const char* text, const char* part) {
  return text != nullptr && std::strstr(text, part) != nullptr;
}

bool IsOurs(void* const* frames, int count) {
  for (int i = 0; i < count; ++i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0) continue;
    const char* const name = info.dli_sname;
    const bool serves_others = Contains(info.dli_fname, "libstdc++") ||
                               Contains(info.dli_fname, "libabsl") ||
                               Contains(info.dli_fname, "libprotobuf") || Contains(name, "_Zn") ||
                               Contains(name, "_ZNSt") || Contains(name, "_ZSt");
    if (serves_others) continue;
    // Templates of gRPC's that are instantiated here are gRPC's.
    return !Contains(info.dli_fname, "/lib/x86_64-linux-gnu/") && !Contains(name, "4grpc");
  }
  return false;
}

// `caller`: where the allocation returns to. What is before it on the stack is this file's, and a
// sanitizer's.
void NoteCaller(const void* caller) {
  if (looking) return;
  looking = true;
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  void** const first = std::find(frames, frames + count, caller);
  if (IsOurs(first, static_cast<int>(frames + count - first))) {
    const int64_t number = own_allocations.fetch_add(1);
    callers[number % kCallers].count = count;
    std::copy(frames, frames + count, callers[number % kCallers].frames);
  }
  looking = false;
}

void* Allocate(size_t bytes, size_t alignment, const void* caller) {
  allocations.fetch_add(1);
  if (attributing) NoteCaller(caller);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

// All others of the library come here.
void* operator new(size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment), __builtin_return_address(0));
}
// By itself the library's would come here too, but not a sanitizer's.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(bytes, alignment);
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
  std::string link = "shm";
};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.topology, "_", info.param.link,
                      info.param.site == UpdateSite::kOwner ? "_owner" : "_worker",
                      info.param.max_norm > 0 ? "_clips" : "");
}

class AllocationTest : public testing::TestWithParam<Case> {
 protected:
  AllocationTest() : plan_(PlanOf(GetParam())), store_(NewInMemoryStore()) {
    pthread_barrier_init(&barrier_, nullptr, kWorkers);
    if (GetParam().topology != "ps") return;
    PsOptions base;
    base.update_site = GetParam().site;
    base.windows = !over_grpc();
    base.connections = over_grpc() ? 2 : 1;
    servers_.emplace(over_grpc() ? NewGrpcLink({}) : NewInProcessLink(), kWorkers, 2, base);
  }
  ~AllocationTest() override { pthread_barrier_destroy(&barrier_); }

  // Over gRPC also buckets whose messages are as large as those of real jobs.
  static Plan PlanOf(const Case& c) {
    if (c.link == "shm") return UnevenPlan(kWorkers);
    PlanOptions options;
    options.world_size = kWorkers;
    options.bucket_bytes = 1 << 20;
    options.chunk_bytes = 100 << 10;
    OptimizerSpec optimizer;
    optimizer.groups.emplace_back();
    std::vector<TensorSpec> tensors;
    for (int64_t size : {2, 300, 250000, 100000, 500000}) {
      tensors.push_back({absl::StrCat("t", size), {size}, {1}});
    }
    return *Plan::Create(tensors, {0, 1, 2, 3, 4}, optimizer, options);
  }

  bool over_grpc() const { return GetParam().link == "grpc"; }

  std::unique_ptr<GradientSync> Create(int rank) {
    if (servers_.has_value()) return servers_->Worker(rank);
    WorkerGroup group;
    group.rank = rank;
    group.world_size = kWorkers;
    group.run_id = "allocations";
    group.store = store_;
    group.address = "127.0.0.1";
    if (over_grpc()) {
      RingOptions options;
      options.group = group;
      options.link = NewGrpcLink({});
      options.update_site = GetParam().site;
      options.connections = 2;
      return *CreateRingGradientSync(options);
    }
    ShmRingOptions options;
    options.group = group;
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

  // Runs all ranks, some steps before, then `windows` times kSteps steps, or until `counter` has
  // not moved in one of the windows. Returns how far it moved in the last.
  int64_t CountInSteps(int windows, const std::atomic<int64_t>& counter) {
    int64_t counted = 0;
    std::atomic<bool> done{false};
    RunRanks(kWorkers, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = Create(rank);
      EXPECT_TRUE(sync->Bind(plan_, Soon()).ok());
      EXPECT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
      std::vector<SyncHandle> handles;
      handles.reserve(plan_.buckets().size());
      int64_t number = 0;
      while (number < 3) Step(*sync, ++number, &handles);
      for (int window = 0; window < windows && !done; ++window) {
        AwaitAll();
        int64_t before = 0;
        if (rank == 0) before = counter;
        AwaitAll();
        for (int64_t i = 0; i < kSteps; ++i) Step(*sync, ++number, &handles);
        AwaitAll();
        if (rank == 0) {
          counted = counter - before;
          done = counted == 0;
          if (window == windows - 1) attributing = false;  // so that what is kept is of steps
        }
        AwaitAll();
      }
      handles.clear();
      EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
    });
    return counted;
  }

  const Plan plan_;
  const std::shared_ptr<KeyValueStore> store_;
  absl::optional<PsGroup> servers_;
  pthread_barrier_t barrier_;
};

class SharedMemoryAllocationTest : public AllocationTest {};
class GrpcAllocationTest : public AllocationTest {};

TEST_P(SharedMemoryAllocationTest, AStepAllocatesNothing) {
  EXPECT_EQ(CountInSteps(1, allocations), 0)
      << "in " << kSteps << " steps of " << kWorkers << " ranks";
}

// What is kept to be used again grows to the largest number that was ever under way, and to the
// most pieces in which each of them ever came from the network, which some step may reach late;
// what is allocated in every step does not end.
TEST_P(GrpcAllocationTest, AStepAllocatesNothingInOurCode) {
  void* frames[4];
  backtrace(frames, 4);  // loads what it needs
  attributing = true;
  own_allocations = 0;
  const int64_t last = CountInSteps(60, own_allocations);
  attributing = false;
  EXPECT_GT(own_allocations, 0) << "nothing was attributed to our code, not even in Bind()";
  EXPECT_EQ(last, 0) << "in " << kSteps << " steps of " << kWorkers << " ranks";
  for (const Callers& caller : callers) {
    if (last > 0) backtrace_symbols_fd(caller.frames, caller.count, STDERR_FILENO);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, SharedMemoryAllocationTest,
    testing::Values(Case{"ring", UpdateSite::kWorker, 0}, Case{"ring", UpdateSite::kOwner, 0},
                    Case{"ring", UpdateSite::kOwner, 1}, Case{"ps", UpdateSite::kWorker, 0},
                    Case{"ps", UpdateSite::kOwner, 0}, Case{"ps", UpdateSite::kOwner, 1}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(Ranks, GrpcAllocationTest,
                         testing::Values(Case{"ring", UpdateSite::kWorker, 0, "grpc"},
                                         Case{"ring", UpdateSite::kOwner, 0, "grpc"},
                                         Case{"ps", UpdateSite::kWorker, 0, "grpc"},
                                         Case{"ps", UpdateSite::kOwner, 0, "grpc"}),
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
