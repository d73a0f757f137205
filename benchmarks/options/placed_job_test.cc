#include "benchmarks/options/placed_job.h"

#include "core/plan/stripes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HasSubstr;

PlacedJob Job(Placement placement, int workers, int servers) {
  PlacedJob job;
  job.spec.topology = servers == 0 ? Topology::kRing : Topology::kPs;
  job.placement = placement;
  job.workers = workers;
  job.servers = servers;
  return job;
}

TEST(PlacedJobTest, EveryWorkerHasAHostOfItsOwnAndServersGoWhereTheySay) {
  EXPECT_THAT(HostsOf(Job(Placement::kNone, 3, 0)), ElementsAre(0, 1, 2));
  EXPECT_THAT(HostsOf(Job(Placement::kDedicated, 2, 2)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(HostsOf(Job(Placement::kColocated, 3, 2)), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(HostsOf(Job(Placement::kMixed, 3, 2)), ElementsAre(0, 1, 2, 0, 1, 2, 3, 4));
  EXPECT_EQ(HostCount(Job(Placement::kMixed, 3, 2)), 5);
  EXPECT_EQ(HostCount(Job(Placement::kColocated, 3, 2)), 3);
}

TEST(PlacedJobTest, MixedServersCountTheDedicatedMachines) {
  EXPECT_EQ(ServerProcesses(Job(Placement::kMixed, 4, 2)), 6);
  EXPECT_EQ(ServerProcesses(Job(Placement::kColocated, 4, 2)), 2);
  const std::vector<double> weights = PlacedWeights(Job(Placement::kMixed, 4, 2));
  ASSERT_EQ(weights.size(), 6u);
  // 2 of 20 and 6 of 20 parts: (n-k) and 2(n-1) of n^2+kn-2k.
  EXPECT_DOUBLE_EQ(weights[0], 0.1);
  EXPECT_DOUBLE_EQ(weights[5], 0.3);
  EXPECT_THAT(PlacedWeights(Job(Placement::kDedicated, 4, 2)), ElementsAre(1, 1));
  EXPECT_THAT(PlacedWeights(Job(Placement::kNone, 4, 0)), ElementsAre());
}

TEST(PlacedJobTest, OwnersThatAreRanksAreNoProcessesButHaveShares) {
  PlacedJob job = Job(Placement::kColocated, 3, 2);
  job.spec.link = Link::kNccl;
  EXPECT_EQ(CheckJob(&job), absl::OkStatus());
  EXPECT_EQ(ServerProcesses(job), 0);
  EXPECT_EQ(job.spec.servers, 0);
  EXPECT_EQ(job.spec.owners, 2);
  EXPECT_THAT(HostsOf(job), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(PlacedWeights(job), ElementsAre(1, 1));
}

TEST(PlacedJobTest, EmulatedHostsHaveTheChunksOfHostsUnlessOthersAreAskedFor) {
  PlacedJob job = Job(Placement::kNone, 3, 0);
  EXPECT_EQ(ChunkBytesOf(job, 0), 0);
  job.bandwidth = "400mbit";
  EXPECT_EQ(ChunkBytesOf(job, 0), kNetworkChunks);
  EXPECT_EQ(ChunkBytesOf(job, 4096), 4096);
}

TEST(PlacedJobTest, WhatCannotBeDoesNotFit) {
  const auto message = [](PlacedJob job) { return std::string(CheckJob(&job).message()); };
  EXPECT_EQ(message(Job(Placement::kDedicated, 2, 5)), "");
  EXPECT_EQ(message(Job(Placement::kColocated, 2, 2)), "");
  EXPECT_EQ(message(Job(Placement::kColocated, 2, 3)),
            "--placement: expected at most as many --servers as --workers for colocated, fewer for "
            "mixed, found \"colocated\"");
  EXPECT_EQ(message(Job(Placement::kMixed, 4, 3)), "");
  EXPECT_THAT(message(Job(Placement::kMixed, 4, 4)), HasSubstr("found \"mixed\""));
  PlacedJob gloo = Job(Placement::kDedicated, 2, 1);
  gloo.spec.link = Link::kGloo;
  EXPECT_THAT(
      message(gloo),
      HasSubstr("--link: expected auto, grpc, tcp, shm, nccl or cuda_ipc with --topology=ps"));
}

TEST(PlacedJobTest, ADescriptionNamesWhatIsNotTheDefault) {
  PlacedJob job = Job(Placement::kColocated, 2, 1);
  EXPECT_EQ(DescribeKind(job.spec) + DescribeServers(job), "ps, servers 1 colocated");
  job.placement = Placement::kDedicated;
  job.spec.link = Link::kGrpc;
  job.spec.update = UpdateSite::kOwner;
  job.spec.consistency = *ParseConsistency("ssp:2");
  EXPECT_EQ(DescribeKind(job.spec) + DescribeServers(job),
            "ps over grpc, update at owner, ssp:2, servers 1");
}

TEST(PlacedJobTest, JobsAreTheSameWhenTheirKindSizeAndPlaceAre) {
  const PlacedJob job = Job(Placement::kColocated, 2, 1);
  PlacedJob other = job;
  other.spec.connections = 7;
  EXPECT_TRUE(SameJob(job, other));
  other.spec.codec = *ParseCodec("bf16");
  EXPECT_FALSE(SameJob(job, other));
  other = job;
  other.bandwidth = "1gbit";
  EXPECT_FALSE(SameJob(job, other));
}

TEST(PlacedJobTest, WorkersTakeTurnsOnlyWhereCoresAreFewer) {
  EXPECT_DOUBLE_EQ(TurnsOnCores(3, 1, 2), 1.5);
  EXPECT_DOUBLE_EQ(TurnsOnCores(2, 2, 8), 1);
  EXPECT_DOUBLE_EQ(TurnsOnCores(64, 1, 0), 1);
}

TEST(SharedGpuTest, RanksShareGpusInOrder) {
  EXPECT_EQ(GpusOf(2, 1), 2);
  EXPECT_EQ(GpusOf(2, 2), 1);
  EXPECT_EQ(GpusOf(5, 2), 3);
  EXPECT_EQ(GpuOf(1, 2), 0);
  EXPECT_EQ(GpuOf(2, 2), 1);
}

TEST(SharedGpuTest, NcclTakesEachRankForAHostOfItsOwn) {
  EXPECT_THAT(SharedGpuEnvironment(0), Contains("NCCL_HOSTID=gradsync-test-0"));
  EXPECT_THAT(SharedGpuEnvironment(1), Contains("NCCL_HOSTID=gradsync-test-1"));
  EXPECT_THAT(SharedGpuEnvironment(1), Contains("NCCL_SOCKET_IFNAME==lo"));  // "=lo": no other
  EXPECT_THAT(SharedGpuNote(2), HasSubstr("2 ranks share a GPU"));
}

TEST(SharedGpuTest, OnlyRanksWithGpusByTheirNumberCanShareThem) {
  EXPECT_TRUE(CheckRanksPerGpu(1, "cpu").ok());
  EXPECT_TRUE(CheckRanksPerGpu(2, "cuda").ok());
  for (const char* device : {"cpu", "cuda:0", ""}) {
    EXPECT_THAT(CheckRanksPerGpu(2, device).message(), HasSubstr("--ranks_per_gpu")) << device;
  }
  EXPECT_THAT(CheckRanksPerGpu(0, "cuda").message(), HasSubstr("at least 1"));
}

}  // namespace
}  // namespace gradsync
