// Combinations of flags for servers over NCCL, and for shared memory of GPUs, that are taken and
// that are refused. The others are in tests/bad_input_test.cc; these need an NCCL or a GPU.

#include "worker/sync_factory.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "allreduce/fake_nccl.h"
#include "base/credentials.h"
#include "ddp/tiny_module.h"
#include "gpu/fake_gpu.h"
#include "gtest/gtest.h"
#include "links/in_memory_store.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

class ServersOverNcclTest : public testing::Test {
 protected:
  ServersOverNcclTest() {
    options_.topology = "ps";
    options_.link = "nccl";
    options_.gpu = gpu_;
    options_.nccl = std::make_shared<FakeNccl>(std::make_shared<FakeNcclNetwork>(), gpu_);
    group_.world_size = 2;
    group_.run_id = "factory";
    group_.store = NewInMemoryStore();
  }

  void ExpectRefused(const std::vector<std::string>& words) const {
    ExpectNames(ValidateSyncOptions(options_), words);
  }
  static void ExpectNames(const absl::Status& status, const std::vector<std::string>& words) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    for (const std::string& word : words) {
      EXPECT_TRUE(absl::StrContains(status.message(), word)) << status << " without " << word;
    }
  }

  const std::shared_ptr<FakeGpu> gpu_ = std::make_shared<FakeGpu>();
  SyncOptions options_;
  WorkerGroup group_;
};

TEST_F(ServersOverNcclTest, AreWorkersThemselves) {
  for (const std::string update : {"worker", "owner"}) {
    for (const int owners : {0, 1, 2}) {
      options_.update = update;
      options_.owners = owners;
      EXPECT_EQ(ValidateSyncOptions(options_), absl::OkStatus());
      const auto sync = CreateGradientSync(options_, group_);
      ASSERT_TRUE(sync.ok()) << sync.status();
      EXPECT_EQ((*sync)->gpu(), gpu_);
    }
  }
}

TEST_F(ServersOverNcclTest, NobodyIsAskedForHosts) {
  SyncOptions resolved = options_;
  group_.store = nullptr;
  EXPECT_EQ(ResolveByHosts(group_, &resolved), absl::OkStatus());
  EXPECT_EQ(resolved.link, "nccl");
  EXPECT_EQ(ResolvedConnections(resolved), 0);
}

TEST_F(ServersOverNcclTest, CannotBeMoreThanWorkers) {
  options_.owners = 3;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--owners", "at most 2", "3"});
  options_.owners = -1;
  ExpectRefused({"--owners", "-1"});
}

TEST_F(ServersOverNcclTest, NeedAGpu) {
  options_.gpu = nullptr;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--link=nccl", "--device=cuda"});
}

TEST_F(ServersOverNcclTest, AreNoProcessesOfTheirOwn) {
  options_.servers = {"127.0.0.1:1"};
  ExpectRefused({"--servers", "--num_servers", "--owners", "--link=nccl"});
}

TEST_F(ServersOverNcclTest, HaveEqualParts) {
  options_.server_weights = "equal";
  EXPECT_EQ(ValidateSyncOptions(options_), absl::OkStatus());
  options_.server_weights = "1,2";
  ExpectRefused({"--server_weights", "equal", "--link=nccl"});
}

TEST_F(ServersOverNcclTest, WaitForAllInEveryStep) {
  options_.update = "owner";
  for (const std::string consistency : {"asp", "ssp:2"}) {
    options_.consistency = consistency;
    ExpectRefused({"--consistency", "--link=nccl", consistency});
  }
}

TEST_F(ServersOverNcclTest, CompressNothing) {
  for (const std::string compression : {"bf16", "topk:0.1"}) {
    options_.compression = compression;
    ExpectRefused({"--compression", "--link=nccl", compression});
  }
}

TEST_F(ServersOverNcclTest, AreNotAskedForElsewhere) {
  options_.owners = 1;
  options_.topology = "ring";
  ExpectRefused({"--owners", "--topology=ring", "1"});
  options_.topology = "ps";
  options_.link = "grpc";
  options_.servers = {"127.0.0.1:1"};
  ExpectRefused({"--owners", "--link=grpc", "1"});
}

// Ranks that share memory of their GPUs.
class SharedGpuMemoryTest : public ServersOverNcclTest {
 protected:
  SharedGpuMemoryTest() {
    options_.link = "cuda_ipc";
    options_.nccl = nullptr;
  }
};

TEST_F(SharedGpuMemoryTest, IsForRingsAndServersThatAreWorkersAndNeedsNoNccl) {
  for (const std::string update : {"worker", "owner"}) {
    for (const std::string topology : {"ring", "ps"}) {
      for (const int owners : {0, 1, 2}) {
        options_.update = update;
        options_.topology = topology;
        options_.owners = topology == "ps" ? owners : 0;
        EXPECT_EQ(ValidateSyncOptions(options_), absl::OkStatus());
        EXPECT_EQ(ResolvedConnections(options_), 0);
        EXPECT_EQ(ResolvedLink(options_), "cuda_ipc");
        const auto sync = CreateGradientSync(options_, group_);
        ASSERT_TRUE(sync.ok()) << sync.status();
        EXPECT_EQ((*sync)->gpu(), gpu_);
      }
    }
  }
}

TEST_F(SharedGpuMemoryTest, IsRefusedWithWhatItCannotDo) {
  const SyncOptions valid = options_;
  options_.topology = "local";
  ExpectRefused({"--link", "cuda_ipc", "--topology=local"});
  options_ = valid;
  options_.servers = {"127.0.0.1:1"};
  ExpectRefused({"--servers", "--owners", "--link=cuda_ipc"});
  options_ = valid;
  options_.server_weights = "1,2";
  ExpectRefused({"--server_weights", "--link=cuda_ipc"});
  options_ = valid;
  options_.update = "owner";
  options_.consistency = "asp";
  ExpectRefused({"--consistency", "--link=cuda_ipc"});
  options_ = valid;
  options_.compression = "bf16";
  ExpectRefused({"--compression", "--link=cuda_ipc"});
  options_ = valid;
  options_.topology = "ring";
  options_.owners = 1;
  ExpectRefused({"--owners", "--topology=ring"});
  options_ = valid;
  options_.owners = 3;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--owners", "at most 2", "3"});
  options_ = valid;
  options_.gpu = nullptr;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--link=cuda_ipc", "--device=cuda"});
}

// --link=gloo ran the ring over gRPC, under Gloo's name.
TEST(SyncFactoryTest, ARingOverGlooIsGloosWhichDoesNotSayWhatItSends) {
  for (const std::string link : {"grpc", "shm", "gloo"}) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    RunRanks(2, [&](int rank) {
      SyncOptions options;
      options.topology = "ring";
      options.link = link;
      WorkerGroup group;
      group.rank = rank;
      group.world_size = 2;
      group.run_id = "factory";
      group.store = store;
      group.address = "127.0.0.1";
      group.credentials = InsecureCredentials();
      ASSERT_EQ(ValidateSyncOptions(options), absl::OkStatus());
      const auto sync = CreateGradientSync(options, group);
      ASSERT_TRUE(sync.ok()) << sync.status();
      const Plan plan = *PlanFor(TinyModule(), {{3, 2}, {1, 0}}, {OptimizerKind::kSgd, {{}}}, 2);
      ASSERT_TRUE((*sync)->Bind(plan, Soon()).ok());
      ASSERT_EQ(RunStep(**sync, plan, {1, 0.1, 0, 1}), absl::OkStatus());
      EXPECT_EQ((*sync)->wire_stats().tx_bytes > 0, link != "gloo") << link;
      EXPECT_EQ(ResolvedConnections(options) > 0, link == "grpc") << link;
      EXPECT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
    });
  }
}

}  // namespace
}  // namespace gradsync
