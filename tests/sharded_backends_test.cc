// Buckets that share memory, on every backend of the host, and staged for a GPU: the bits of those
// that do not, every byte on the wire as core/plan/sharding.h says, and memory as it says within
// 2 %, on a GPU to the byte.

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/base/sanitizers.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/sharding.h"
#include "core/plan/wire_traffic.h"
#include "core/sync/staged_sync.h"
#include "gtest/gtest.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"
#if defined(GRADSYNC_ADDRESS_SANITIZER) || defined(GRADSYNC_THREAD_SANITIZER)
// Of the sanitizers' run-time library; g++ 12 has no header that declares it.
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace gradsync {
namespace {

constexpr int64_t kSteps = 3;

// Where workers have their buckets: on the host, or staged, in the memory of a fake GPU, whose
// compute stream may be behind the caller.
enum class Memory { kHost, kGpu, kLateGpu };

struct Case {
  int workers = 1;
  int servers = 0;   // 0: a ring
  std::string link;  // "in process", "grpc", "tcp", "shm"
  Memory memory = Memory::kHost;
};

OptimizerSpec Momentum() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return optimizer;
}

TensorSpec Tensor(std::string name, int64_t numel) {
  return TensorSpec{std::move(name), {numel}, {1}, 0};
}

// Buckets below n chunks, cut tails, empty chunks, padding.
Plan UnevenBuckets(int n) {
  return *Plan::FromBuckets({Tensor("a", 3), Tensor("b", 5000), Tensor("c", 17), Tensor("d", 2049),
                             Tensor("e", 40), Tensor("f", 900)},
                            {{0}, {1, 2}, {3}, {4}, {5}}, Momentum(), n, /*chunk_bytes=*/512);
}

Plan WithSlots(const Plan& plan, int gradients, int parameters) {
  BucketSlots slots;
  slots.gradients = gradients;
  slots.parameters = parameters;
  return *plan.WithSlots(slots);
}

// Ranks are threads, servers objects; all in this process.
class Job {
 public:
  Job(const Case& config, const Plan& plan, UpdateSite site)
      : config_(config),
        plan_(plan),
        site_(site),
        link_(config.link == "grpc"  ? NewGrpcLink()
              : config.link == "tcp" ? NewTcpLink()
                                     : NewInProcessLink()),
        store_(NewInMemoryStore()),
        gpus_(config.workers),
        syncs_(config.workers),
        buckets_(config.workers),
        used_(config.workers) {
    if (config_.servers > 0) {
      PsOptions base;
      base.update_site = site;
      base.windows = config_.link == "shm";
      base.connections = base.windows ? 1 : 2;
      servers_.emplace(link_, config_.workers, config_.servers, base);
    }
    Collective([this](int rank) {
      syncs_[rank] = Create(rank);
      if (config_.memory != Memory::kHost) {
        gpus_[rank] = config_.memory == Memory::kGpu ? std::make_shared<FakeGpu>()
                                                     : std::make_shared<QueuedGpu>();
        syncs_[rank] = CreateStagedSync(std::move(syncs_[rank]), gpus_[rank]);
      }
      auto buckets = syncs_[rank]->Bind(plan_, Soon());
      if (buckets.ok()) buckets_[rank] = *std::move(buckets);
      return buckets.status();
    });
  }

  ~Job() {
    Collective([this](int rank) { return syncs_[rank]->Shutdown(Soon()); });
  }

  // The same parameters from rank 0, whatever others have.
  void Begin() {
    Collective([this](int rank) -> absl::Status {
      for (int b = 0; b < buckets(); ++b) {
        Compute(rank, [=] { Fill(b, 0.5 + b, rank == 0, &buckets_[rank][b].param); });
        if (!sharded()) continue;
        const absl::Status stored = syncs_[rank]->StoreParameters(b, Soon());
        if (!stored.ok()) return stored;
      }
      return sharded() ? absl::OkStatus() : syncs_[rank]->BroadcastParameters(Soon());
    });
  }

  // Every bucket is gathered twice, as forward and backward do, and its gradient written when its
  // memory is free.
  void Step(int64_t number, double max_norm = 0) {
    Collective([this, number, max_norm](int rank) -> absl::Status {
      StepOptions step;
      step.step = number;
      step.lr = 0.1;
      step.max_norm = max_norm;
      GradientSync& sync = *syncs_[rank];
      for (int pass = 0; sharded() && pass < 2; ++pass) {
        for (int b = 0; b < buckets(); ++b) {
          const absl::Status gathered = sync.Gather(b).Wait(Soon());
          if (!gathered.ok()) return gathered;
          Use(rank, b);
        }
      }
      std::vector<SyncHandle> handles;
      for (int b = 0; b < buckets(); ++b) {
        const int before = b - plan_.slots().gradients;
        if (plan_.slots().gradients > 0 && before >= 0) {
          const absl::Status free = handles[before].Wait(Soon());
          if (!free.ok()) return free;
        }
        const double scale = static_cast<double>(number) / (rank + 3);
        Compute(rank, [=] { Fill(b, scale, true, &buckets_[rank][b].grad); });
        handles.push_back(sync.Launch(step, b));
      }
      return WaitForAll(handles);
    });
  }

  // Of all ranks, which must agree.
  std::vector<float> Parameters() {
    std::vector<std::vector<float>> of(config_.workers);
    Collective([&](int rank) -> absl::Status {
      for (int b = 0; b < buckets(); ++b) {
        if (sharded()) {
          const absl::Status gathered = syncs_[rank]->Gather(b).Wait(Soon());
          if (!gathered.ok()) return gathered;
        }
        Compute(rank, [this, rank, b, &of] {
          const FlatBuffer& param = buckets_[rank][b].param;
          const float* const values = param.floats();
          of[rank].insert(of[rank].end(), values, values + param.numel);
        });
      }
      return gpus_[rank] == nullptr ? absl::OkStatus() : gpus_[rank]->SynchronizeDevice();
    });
    for (int rank = 1; rank < config_.workers; ++rank) EXPECT_EQ(of[rank], of[0]);
    return of[0];
  }

  // What rank 0 has computed with, up to Parameters(): two elements for each gather.
  const std::vector<float>& used() const { return used_[0]; }

  // The most that the GPU of a rank has had.
  size_t device_bytes(int rank) const { return gpus_[rank]->most_device_bytes(); }

  // Of workers, since the start.
  std::vector<NodeTraffic> counted() const {
    std::vector<NodeTraffic> nodes;
    for (const auto& sync : syncs_) {
      const WireStats stats = sync->wire_stats();
      nodes.push_back({stats.tx_bytes, stats.rx_bytes, stats.tx_messages, stats.rx_messages});
    }
    return nodes;
  }

 private:
  bool sharded() const { return plan_.slots().parameters > 0; }
  int buckets() const { return static_cast<int>(plan_.buckets().size()); }

  // In the order of the rank's compute stream.
  void Compute(int rank, std::function<void()> work) {
    if (config_.memory == Memory::kHost) return work();
    FakeGpu& gpu = *gpus_[rank];
    if (config_.memory == Memory::kLateGpu) gpu.Enqueue(gpu.ComputeStream(), GiveOthersTime);
    gpu.Enqueue(gpu.ComputeStream(), std::move(work));
  }

  void Use(int rank, int bucket) {
    Compute(rank, [this, rank, bucket] {
      const FlatBuffer& param = buckets_[rank][bucket].param;
      used_[rank].push_back(param.floats()[0]);
      used_[rank].push_back(param.floats()[param.numel / 2]);
    });
  }

  // Padding is zero.
  void Fill(int bucket, double scale, bool with_values, FlatBuffer* to) const {
    float* const values = to->floats();
    std::fill_n(values, to->numel, 0.0f);
    for (const PlacedTensor& placed : plan_.buckets()[bucket].tensors) {
      for (int64_t i = 0; with_values && i < plan_.tensors()[placed.tensor].numel(); ++i) {
        values[placed.offset + i] = static_cast<float>(scale * (1 + (i * 7 + bucket) % 11));
      }
    }
  }

  std::unique_ptr<GradientSync> Create(int rank) const {
    if (servers_.has_value()) return servers_->Worker(rank);
    WorkerGroup group;
    group.rank = rank;
    group.world_size = config_.workers;
    group.run_id = "shards";
    group.store = store_;
    group.address = "127.0.0.1";
    if (config_.link == "shm") {
      ShmRingOptions options;
      options.group = group;
      options.update_site = site_;
      return *CreateShmRingGradientSync(options);
    }
    RingOptions options;
    options.group = group;
    options.link = link_;
    options.update_site = site_;
    options.connections = 2;
    return *CreateRingGradientSync(options);
  }

  void Collective(const std::function<absl::Status(int rank)>& body) {
    RunRanks(config_.workers, [&body](int rank) {
      const absl::Status status = body(rank);
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    });
  }

  const Case config_;
  const Plan plan_;
  const UpdateSite site_;
  const std::shared_ptr<StreamLink> link_;
  const std::shared_ptr<KeyValueStore> store_;
  absl::optional<PsGroup> servers_;
  std::vector<std::shared_ptr<FakeGpu>> gpus_;  // by rank, as all below; null: the host
  std::vector<std::unique_ptr<GradientSync>> syncs_;
  std::vector<std::vector<GradBucket>> buckets_;
  std::vector<std::vector<float>> used_;
};

// `used` gets what was computed with.
std::vector<float> Train(const Case& config, const Plan& plan, std::vector<float>* used = nullptr,
                         double max_norm = 0) {
  Job job(config, plan, UpdateSite::kOwner);
  job.Begin();
  for (int64_t step = 1; step <= kSteps; ++step) job.Step(step, max_norm);
  std::vector<float> parameters = job.Parameters();
  if (used != nullptr) *used = job.used();
  return parameters;
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrCat(c.link == "in process" ? "InProcess" : c.link, "Workers", c.workers,
                      "Servers", c.servers);
}

class ShardedBackendsTest : public testing::TestWithParam<Case> {};

TEST_P(ShardedBackendsTest, EndWithTheBitsOfBucketsWithMemoryOfTheirOwn) {
  const Plan plan = UnevenBuckets(GetParam().workers);
  Case on_host = GetParam();
  on_host.memory = Memory::kHost;
  const std::vector<float> expected = Train(on_host, plan);
  EXPECT_NE(expected[0], 0.5f);
  EXPECT_EQ(Train(GetParam(), WithSlots(plan, 2, 0)), expected);
  EXPECT_EQ(Train(GetParam(), WithSlots(plan, 2, 2)), expected);
  EXPECT_EQ(Train(GetParam(), WithSlots(plan, 1, 1)), expected);
}

// A norm needs all gradients at once, so these have memory of their own.
TEST_P(ShardedBackendsTest, ClipWhileParametersTakeTurns) {
  const Plan plan = UnevenBuckets(GetParam().workers);
  Case on_host = GetParam();
  on_host.memory = Memory::kHost;
  const std::vector<float> expected = Train(on_host, plan, nullptr, /*max_norm=*/0.5);
  EXPECT_NE(expected, Train(on_host, plan));
  EXPECT_EQ(Train(GetParam(), WithSlots(plan, 0, 2), nullptr, /*max_norm=*/0.5), expected);
}

TEST(LateGpuTest, ComputesWithWhatWasGatheredHoweverFarBehind) {
  for (const Case& config :
       {Case{2, 0, "in process"}, Case{2, 1, "in process"}, Case{2, 0, "shm"}}) {
    for (int slots : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(config.servers, " servers, ", config.link, ", slots ", slots));
      const Plan plan = WithSlots(UnevenBuckets(config.workers), slots, slots);
      Case late = config;
      late.memory = Memory::kLateGpu;
      std::vector<float> used, expected;
      EXPECT_EQ(Train(late, plan, &used), Train(config, plan, &expected));
      EXPECT_EQ(used, expected);
    }
  }
}

// Workers only: what servers send is what these receive.
std::vector<NodeTraffic> ExpectedStep(const Case& config, const Plan& plan) {
  const int processes = config.workers + config.servers;
  const int buckets = static_cast<int>(plan.buckets().size());
  std::vector<Flow> flows;
  const auto add = [&flows](const std::vector<Flow>& more) {
    flows.insert(flows.end(), more.begin(), more.end());
  };
  if (config.servers == 0) {
    add(RingLaunchFlows(plan));
    for (int b = 0; b < 2 * buckets; ++b) add(RingGatherFlows(plan, b % buckets));
  } else {
    const ShardMap shards = *ShardMap::Create(plan, std::vector<double>(config.servers, 1));
    add(PsLaunchFlows(plan, shards));
    for (int b = 0; b < 2 * buckets; ++b) add(PsGatherFlows(plan, shards, b % buckets));
  }
  std::vector<NodeTraffic> nodes = ProcessTraffic(flows, processes);
  nodes.resize(config.workers);
  return nodes;
}

TEST_P(ShardedBackendsTest, SendExactlyWhatTheModelSays) {
  if (GetParam().link == "shm") GTEST_SKIP() << "nothing is sent";
  const Plan plan = WithSlots(UnevenBuckets(GetParam().workers), 2, 3);
  Job job(GetParam(), plan, UpdateSite::kOwner);
  job.Begin();
  const std::vector<NodeTraffic> expected = ExpectedStep(GetParam(), plan);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<NodeTraffic> before = job.counted();
    job.Step(step);
    const std::vector<NodeTraffic> after = job.counted();
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      EXPECT_EQ(after[rank].tx_bytes - before[rank].tx_bytes, expected[rank].tx_bytes) << rank;
      EXPECT_EQ(after[rank].rx_bytes - before[rank].rx_bytes, expected[rank].rx_bytes) << rank;
      EXPECT_EQ(after[rank].tx_messages - before[rank].tx_messages, expected[rank].tx_messages);
      EXPECT_EQ(after[rank].rx_messages - before[rank].rx_messages, expected[rank].rx_messages);
    }
  }
}

// What the C library's allocator has given out, in all arenas; or a sanitizer's, in its place.
int64_t AllocatedBytes() {
#if defined(GRADSYNC_ADDRESS_SANITIZER) || defined(GRADSYNC_THREAD_SANITIZER)
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
#endif
}

// How far from the model that may be. The thread sanitizer's gives 320 KiB for what is little more than 256.
#if defined(GRADSYNC_THREAD_SANITIZER)
constexpr double kMemoryError = 0.05;
#else
constexpr double kMemoryError = 0.02;
#endif

// 16 MiB of parameters in 16 buckets.
Plan LargePlan(int n) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  for (int b = 0; b < 16; ++b) {
    tensors.push_back(Tensor(absl::StrCat("t", b), 256 << 10));
    buckets.push_back({b});
  }
  return *Plan::FromBuckets(std::move(tensors), buckets, Momentum(), n, /*chunk_bytes=*/256 << 10);
}

int64_t ExpectedMemory(const Case& config, const Plan& plan) {
  int64_t bytes = 0;
  for (int rank = 0; rank < config.workers; ++rank) {
    bytes += config.servers == 0 ? RingMemory(plan, UpdateSite::kOwner, rank).total()
                                 : PsWorkerMemory(plan, UpdateSite::kOwner).total();
  }
  const ShardMap shards =
      *ShardMap::Create(plan, std::vector<double>(std::max(config.servers, 1), 1));
  for (int server = 0; server < config.servers; ++server) {
    bytes += PsServerMemory(plan, UpdateSite::kOwner, shards.bytes(server)).total();
  }
  return bytes;
}

TEST(ShardedMemoryTest, IsWhatTheModelSays) {
  for (const Case& config :
       {Case{2, 0, "in process"}, Case{4, 0, "in process"}, Case{3, 2, "in process"}}) {
    const Plan plan = LargePlan(config.workers);
    for (const Plan& each : {plan, WithSlots(plan, 2, 0), WithSlots(plan, 2, 3)}) {
      SCOPED_TRACE(absl::StrCat(config.workers, " workers, ", config.servers, " servers, slots ",
                                each.slots().gradients, " and ", each.slots().parameters));
      const int64_t before = AllocatedBytes();
      Job job(config, each, UpdateSite::kOwner);
      job.Begin();
      job.Step(1);
      job.Step(2);
      const double expected = static_cast<double>(ExpectedMemory(config, each));
      double found = 0;
      // Threads of links may be a moment behind with letting go of what they have delivered.
      const Deadline patience = Deadline::In(absl::Seconds(10));
      do {
        found = static_cast<double>(AllocatedBytes() - before);
      } while (found > (1 + kMemoryError) * expected && !patience.passed());
      EXPECT_NEAR(found / expected, 1, kMemoryError) << found << " bytes, expected " << expected;
    }
  }
}

// Of floats, in slots that fill whole 256 bytes.
size_t SlotBytes(const Plan& plan, int slots) {
  size_t bytes = 0;
  for (int64_t elements : SlotElements(plan, slots)) {
    bytes += (static_cast<size_t>(elements) * sizeof(float) + 255) / 256 * 256;
  }
  return bytes;
}

TEST(ShardedMemoryTest, OfAGpuIsThatOfTheSlots) {
  for (const Case& config :
       {Case{2, 0, "in process", Memory::kGpu}, Case{2, 1, "shm", Memory::kGpu}}) {
    const Plan plan = LargePlan(config.workers);
    for (const auto& [gradients, parameters] :
         {std::pair(0, 0), std::pair(2, 0), std::pair(2, 3)}) {
      const Plan each = WithSlots(plan, gradients, parameters);
      Job job(config, each, UpdateSite::kOwner);
      job.Begin();
      job.Step(1);
      job.Step(2);
      const size_t expected = SlotBytes(each, gradients) + SlotBytes(each, parameters);
      EXPECT_EQ(job.device_bytes(0), expected) << gradients << " and " << parameters;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, ShardedBackendsTest,
                         testing::Values(Case{1, 0, "in process"}, Case{2, 0, "in process"},
                                         Case{3, 0, "grpc"}, Case{4, 0, "in process"},
                                         Case{2, 0, "shm"}, Case{4, 0, "shm"},
                                         Case{1, 1, "in process"}, Case{2, 1, "in process"},
                                         Case{3, 2, "tcp"}, Case{4, 3, "in process"},
                                         Case{3, 2, "shm"}, Case{4, 1, "shm"}),
                         CaseName);

// Owners on the host, who keep for GPUs.
INSTANTIATE_TEST_SUITE_P(
    Staged, ShardedBackendsTest,
    testing::Values(Case{1, 0, "in process", Memory::kGpu}, Case{2, 0, "tcp", Memory::kGpu},
                    Case{3, 0, "shm", Memory::kGpu}, Case{2, 1, "in process", Memory::kGpu},
                    Case{3, 2, "grpc", Memory::kGpu}, Case{2, 2, "shm", Memory::kGpu}),
    CaseName);

}  // namespace
}  // namespace gradsync
