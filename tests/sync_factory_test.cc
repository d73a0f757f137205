// What the factory takes and refuses besides a combination of topology, link, update, consistency
// and device, which are in tests/factory_conformance_test.cc: owners, weights, compression.

#include "gradsync/join/sync_factory.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "allreduce/fake_nccl.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

class ServersOverNcclTest : public testing::Test {
 protected:
  ServersOverNcclTest() {
    options_.job.topology = Topology::kPs;
    options_.job.link = Link::kNccl;
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
  for (const UpdateSite update : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    for (const int owners : {0, 1, 2}) {
      options_.job.update = update;
      options_.job.owners = owners;
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
  EXPECT_EQ(resolved.job.link, Link::kNccl);
  EXPECT_EQ(ConnectionsOf(resolved.job), 0);
}

TEST_F(ServersOverNcclTest, CannotBeMoreThanWorkers) {
  options_.job.owners = 3;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--owners", "at most 2", "3"});
  options_.job.owners = -1;
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
  options_.server_weights = *ParseServerWeights("equal");
  EXPECT_EQ(ValidateSyncOptions(options_), absl::OkStatus());
  options_.server_weights = *ParseServerWeights("1,2");
  ExpectRefused({"--server_weights", "equal", "--link=nccl"});
}

TEST_F(ServersOverNcclTest, WaitForAllInEveryStep) {
  options_.job.update = UpdateSite::kOwner;
  for (const std::string consistency : {"asp", "ssp:2"}) {
    options_.job.consistency = *ParseConsistency(consistency);
    ExpectRefused({"--consistency", "--link=nccl", consistency});
  }
}

TEST_F(ServersOverNcclTest, CompressNothing) {
  for (const std::string compression : {"bf16", "topk:0.1"}) {
    options_.job.codec = *ParseCodec(compression);
    ExpectRefused({"--compression", "--link=nccl", compression});
  }
}

TEST_F(ServersOverNcclTest, AreNotAskedForElsewhere) {
  options_.job.owners = 1;
  options_.job.topology = Topology::kRing;
  ExpectRefused({"--owners", "--topology=ring", "1"});
  options_.job.topology = Topology::kPs;
  options_.job.link = Link::kGrpc;
  options_.servers = {"127.0.0.1:1"};
  ExpectRefused({"--owners", "--servers", "1"});
}

// Ranks that share memory of their GPUs.
class SharedGpuMemoryTest : public ServersOverNcclTest {
 protected:
  SharedGpuMemoryTest() {
    options_.job.link = Link::kCudaIpc;
    options_.nccl = nullptr;
  }
};

TEST_F(SharedGpuMemoryTest, IsForRingsAndServersThatAreWorkersAndNeedsNoNccl) {
  for (const UpdateSite update : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    for (const Topology topology : {Topology::kRing, Topology::kPs}) {
      for (const int owners : {0, 1, 2}) {
        options_.job.update = update;
        options_.job.topology = topology;
        options_.job.owners = topology == Topology::kPs ? owners : 0;
        EXPECT_EQ(ValidateSyncOptions(options_), absl::OkStatus());
        EXPECT_EQ(ConnectionsOf(options_.job), 0);
        const auto sync = CreateGradientSync(options_, group_);
        ASSERT_TRUE(sync.ok()) << sync.status();
        EXPECT_EQ((*sync)->gpu(), gpu_);
      }
    }
  }
}

TEST_F(SharedGpuMemoryTest, IsRefusedWithWhatItCannotDo) {
  const SyncOptions valid = options_;
  options_.job.topology = Topology::kLocal;
  ExpectRefused({"--link", "cuda_ipc", "--topology=local"});
  options_ = valid;
  options_.servers = {"127.0.0.1:1"};
  ExpectRefused({"--servers", "--owners", "--link=cuda_ipc"});
  options_ = valid;
  options_.server_weights = *ParseServerWeights("1,2");
  ExpectRefused({"--server_weights", "--link=cuda_ipc"});
  options_ = valid;
  options_.job.update = UpdateSite::kOwner;
  options_.job.consistency = *ParseConsistency("asp");
  ExpectRefused({"--consistency", "--link=cuda_ipc"});
  options_ = valid;
  options_.job.codec = *ParseCodec("bf16");
  ExpectRefused({"--compression", "--link=cuda_ipc"});
  options_ = valid;
  options_.job.topology = Topology::kRing;
  options_.job.owners = 1;
  ExpectRefused({"--owners", "--topology=ring"});
  options_ = valid;
  options_.job.owners = 3;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--owners", "at most 2", "3"});
  options_ = valid;
  options_.gpu = nullptr;
  ExpectNames(CreateGradientSync(options_, group_).status(), {"--link=cuda_ipc", "--device=cuda"});
}

}  // namespace
}  // namespace gradsync
