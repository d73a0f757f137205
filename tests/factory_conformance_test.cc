// The conformance suite through the front door: every combination of topology, link, update site,
// consistency and device, as flags spell them. Each is either in the list of those that run, and
// then is made by the factory and holds to the contract, or is refused by a message that names a
// flag.
//
// Once a ring over Gloo was one over gRPC, because no test made its backends as programs do.

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "allreduce/fake_nccl.h"
#include "core/base/credentials.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "core/links/server_link.h"
#include "core/plan/job_spec.h"
#include "gradsync/join/sync_factory.h"
#include "gradsync/join/torch_adapters.h"
#include "gtest/gtest.h"
#include "ps_server/server.h"
#include "tests/conformance_suite.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

constexpr int kServers = 2;

// As flags spell it.
struct Combination {
  JobSpecText text;
  std::string device;  // cpu, cuda

  std::string Name() const {
    return absl::StrCat(text.topology, " ", text.link, " ", text.update, " ", text.consistency, " ",
                        device);
  }
};

struct Runs {
  std::string topology;
  std::set<std::string> links;
  std::set<std::string> updates;
  std::set<std::string> consistencies;
  std::set<std::string> devices;
};

// What runs. The rest is refused.
std::vector<Runs> AllThatRuns() {
  const std::set<std::string> sites = {"worker", "owner"};
  const std::set<std::string> any = {"cpu", "cuda"};
  return {
      {"local", {"auto"}, sites, {"bsp"}, any},
      {"ring", {"auto", "grpc", "tcp", "shm"}, sites, {"bsp"}, any},
      {"ring", {"gloo"}, {"worker"}, {"bsp"}, any},
      {"ring", {"nccl", "cuda_ipc"}, sites, {"bsp"}, {"cuda"}},
      {"ps", {"auto", "grpc", "tcp", "shm"}, sites, {"bsp"}, any},
      {"ps", {"auto", "grpc", "tcp"}, {"owner"}, {"ssp:1", "asp"}, any},
      {"ps", {"nccl", "cuda_ipc"}, sites, {"bsp"}, {"cuda"}},
  };
}

bool MustRun(const Combination& combination) {
  for (const Runs& runs : AllThatRuns()) {
    if (runs.topology == combination.text.topology && runs.links.count(combination.text.link) &&
        runs.updates.count(combination.text.update) &&
        runs.consistencies.count(combination.text.consistency) &&
        runs.devices.count(combination.device)) {
      return true;
    }
  }
  return false;
}

std::vector<Combination> AllCombinations() {
  std::vector<Combination> all;
  for (const char* topology : {"local", "ring", "ps"}) {
    for (const char* link : {"auto", "grpc", "tcp", "shm", "gloo", "nccl", "cuda_ipc"}) {
      for (const char* update : {"worker", "owner"}) {
        for (const char* consistency : {"bsp", "ssp:1", "asp"}) {
          for (const char* device : {"cpu", "cuda"}) {
            all.push_back({{topology, link, update, consistency, "none"}, device});
          }
        }
      }
    }
  }
  return all;
}

#ifdef USE_C10D_GLOO
constexpr bool kHasGloo = true;
#else
constexpr bool kHasGloo = false;  // pip's LibTorch lacks its headers
#endif

// The servers, GPUs and NCCL of a group that runs a combination.
class FactoryFixture : public BackendFixture {
 public:
  explicit FactoryFixture(Combination combination) : combination_(std::move(combination)) {
    const bool processes = combination_.text.link != "nccl" && combination_.text.link != "cuda_ipc";
    if (combination_.text.topology != "ps" || !processes) return;
    for (int i = 0; i < kServers; ++i) {
      ServerOptions options;
      options.link = NewServerLink();
      servers_.push_back(*ParameterServer::Start(options));
    }
  }

  ~FactoryFixture() override {
    EXPECT_TRUE(network_->mismatches().empty());
    for (const std::shared_ptr<FakeGpu>& gpu : gpus_) {
      EXPECT_EQ(gpu->live_objects(), 0) << combination_.Name();
      for (const std::string& misuse : gpu->TakeMisuses()) ADD_FAILURE() << misuse;
    }
  }

  // As //worker does, with the flags of the combination.
  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& of_rank) override {
    WorkerGroup group = of_rank;
    if (combination_.text.topology == "local") group.world_size = 1;
    if (group.store == nullptr) group.store = NewInMemoryStore();
    group.address = "127.0.0.1";
    group.credentials = InsecureCredentials();
    SyncOptions options;
    options.adapters = TorchAdapters();
    GS_ASSIGN_OR_RETURN(options.job, ParseJobSpec(combination_.text));
    for (const auto& server : servers_) options.servers.push_back(server->address());
    // Shares by hosts take all ranks, and some tests are of one.
    if (combination_.text.link != "auto") options.server_weights = *ParseServerWeights("equal");
    if (combination_.device == "cuda") {
      const auto gpu = std::make_shared<FakeGpu>(group.rank);
      MutexLock lock(&mutex_);
      gpus_.push_back(gpu);
      options.gpu = gpu;
      if (combination_.text.link == "nccl") {
        options.nccl = std::make_shared<FakeNccl>(network_, gpu);
      }
    }
    GS_RETURN_IF_ERROR(ValidateSyncOptions(options));
    GS_RETURN_IF_ERROR(ResolveByHosts(group, &options));
    return CreateGradientSync(options, group);
  }

 private:
  const Combination combination_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  const std::shared_ptr<FakeNcclNetwork> network_ = std::make_shared<FakeNcclNetwork>();
  Mutex mutex_;
  std::vector<std::shared_ptr<FakeGpu>> gpus_ ABSL_GUARDED_BY(mutex_);
};

std::string TestName(absl::string_view text) {
  std::string name;
  for (const char c : text) {
    if (absl::ascii_isalnum(c)) name.push_back(c);
    if (c == ' ') name.push_back('_');
  }
  return name;
}

// The whole suite for each combination whose steps wait for all.
std::vector<ConformanceCase> BulkCases() {
  std::vector<ConformanceCase> cases;
  for (const Combination& combination : AllCombinations()) {
    const JobSpecText& text = combination.text;
    if (!MustRun(combination) || text.consistency != "bsp") continue;
    if (text.link == "gloo" && !kHasGloo) continue;
    if (text.link == "auto" && text.topology != "local")
      continue;  // one of the others, once chosen
    // The links of frames are alike to what is above them: tcp on the host, grpc below a GPU.
    if (text.link == (combination.device == "cpu" ? "grpc" : "tcp")) continue;
    BackendTraits traits;
    traits.name = TestName(absl::StrCat(text.topology, " ", text.link, " ", combination.device));
    traits.make_fixture = [combination](int, UpdateSite) {
      return std::make_unique<FactoryFixture>(combination);
    };
    traits.plan_order_beyond_two =
        text.link != "gloo" && !(text.link == "nccl" && text.topology == "ring");
    const int ranks = text.topology == "local" ? 1 : 3;
    cases.push_back({traits, ranks, *ParseUpdateSite(text.update)});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Factory, ConformanceTest, testing::ValuesIn(BulkCases()), CaseName);

WorkerGroup SomeGroup(int rank, int world_size, std::shared_ptr<KeyValueStore> store) {
  WorkerGroup group;
  group.rank = rank;
  group.world_size = world_size;
  group.run_id = "factory";
  group.store = std::move(store);
  return group;
}

TEST(FactoryTest, MakesWhatWasAskedForOrRefusesItByAFlagsName) {
  int run = 0;
  int refused = 0;
  for (const Combination& combination : AllCombinations()) {
    SCOPED_TRACE(combination.Name());
    if (combination.text.link == "gloo" && !kHasGloo) continue;
    const int ranks = combination.text.topology == "local" ? 1 : 2;
    FactoryFixture fixture(combination);
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    RunRanks(ranks, [&](int rank) {
      const auto sync = fixture.Create(SomeGroup(rank, ranks, store));
      if (!MustRun(combination)) {
        ASSERT_TRUE(absl::IsInvalidArgument(sync.status())) << sync.status();
        EXPECT_TRUE(absl::StartsWith(sync.status().message(), "--")) << sync.status();
        if (rank == 0) {
          std::printf("refused  %-32s %s\n", combination.Name().c_str(),
                      std::string(sync.status().message()).c_str());
        }
        return;
      }
      ASSERT_TRUE(sync.ok()) << sync.status();
      const BackendTrait& trait = TraitOf((*sync)->identity().backend);
      EXPECT_EQ(TopologyName(trait.topology), combination.text.topology);
      std::string link = combination.text.link;
      if (link == "auto" && combination.text.consistency == "bsp") link = "shm";
      if (link == "auto") link = LinkName(kLinkBetweenHosts);
      if (combination.text.topology == "local") link = "";
      EXPECT_EQ(LinkName(trait.link), link);
      EXPECT_EQ(UpdateSiteName((*sync)->update_site()), combination.text.update);
      EXPECT_EQ(ConsistencyName((*sync)->identity().consistency), combination.text.consistency);
      EXPECT_EQ((*sync)->gpu() != nullptr, combination.device == "cuda");
      EXPECT_EQ((*sync)->identity().connections > 0, link == "grpc" || link == "tcp");
      if (rank == 0) {
        std::printf("runs     %-32s %s\n", combination.Name().c_str(),
                    BackendName((*sync)->identity().backend).c_str());
      }
    });
    ++(MustRun(combination) ? run : refused);
  }
  std::printf("%d combinations run, %d are refused\n", run, refused);
}

Plan SmallPlan(int world_size) {
  OptimizerSpec momentum;
  momentum.groups.resize(1);
  momentum.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {3000}, {1}, 0}, {"b", {5}, {1}, 0}}, {{0}, {1}}, momentum,
                            world_size, 256);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.05;
  return step;
}

// A backend that says that it counts bytes has counted some after a step, and no other has any.
TEST(FactoryTest, OnlyWhatCountsBytesReportsThem) {
  for (const Combination& combination : AllCombinations()) {
    const JobSpecText& text = combination.text;
    if (!MustRun(combination) || text.consistency != "bsp" || text.topology == "local") continue;
    if (text.link == "gloo" && !kHasGloo) continue;
    SCOPED_TRACE(combination.Name());
    FactoryFixture fixture(combination);
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    RunRanks(2, [&](int rank) {
      const auto sync = fixture.Create(SomeGroup(rank, 2, store));
      ASSERT_TRUE(sync.ok()) << sync.status();
      const Plan plan = SmallPlan(2);
      ASSERT_TRUE((*sync)->Bind(plan, Soon()).ok());
      ASSERT_EQ(RunStep(**sync, plan, Step(1)), absl::OkStatus());
      const Backend backend = (*sync)->identity().backend;
      // Workers that share memory with servers store nothing in theirs.
      const bool sends = backend != Backend::kPsOverShm;
      EXPECT_EQ((*sync)->wire_stats().tx_bytes > 0, TraitOf(backend).counts_bytes && sends)
          << combination.Name() << " on rank " << rank;
      EXPECT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
    });
  }
}

// Others than bsp: whatever the order of gradients was, all end with the same parameters.
TEST(FactoryTest, UnderAnyConsistencyAllSettleOnTheSameParameters) {
  for (const Combination& combination : AllCombinations()) {
    if (!MustRun(combination) || combination.text.consistency == "bsp") continue;
    SCOPED_TRACE(combination.Name());
    FactoryFixture fixture(combination);
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    std::vector<FlatValues> ends(2);
    RunRanks(2, [&](int rank) {
      auto sync = fixture.Create(SomeGroup(rank, 2, store));
      ASSERT_TRUE(sync.ok()) << sync.status();
      const Plan plan = SmallPlan(2);
      auto buckets = (*sync)->Bind(plan, Soon());
      ASSERT_TRUE(buckets.ok()) << buckets.status();
      ASSERT_EQ((*sync)->BroadcastParameters(Soon()), absl::OkStatus());
      for (int64_t step = 1; step <= 3 + rank; ++step) {
        Write(RandomValues(plan, static_cast<int>(10 * step) + rank), *buckets, &GradBucket::grad);
        ASSERT_EQ(RunStep(**sync, plan, Step(step)), absl::OkStatus());
      }
      ASSERT_EQ((*sync)->Settle(Soon()), absl::OkStatus());
      ends[rank] = Read(*buckets, &GradBucket::param);
      EXPECT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
    });
    EXPECT_FALSE(ends[0].empty());
    EXPECT_EQ(ends[0], ends[1]);
  }
}

}  // namespace
}  // namespace gradsync
