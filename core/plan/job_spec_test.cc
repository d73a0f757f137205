#include "core/plan/job_spec.h"

#include <string>

#include "core/plan/sharding.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr Topology kTopologies[] = {Topology::kLocal, Topology::kPs, Topology::kRing};
constexpr Link kLinks[] = {Link::kAuto, Link::kNone, Link::kGrpc, Link::kTcp,
                           Link::kShm,  Link::kGloo, Link::kNccl, Link::kCudaIpc};

JobSpec SpecOf(const BackendTrait& trait) {
  JobSpec spec;
  spec.topology = trait.topology;
  spec.link = trait.link;
  return spec;
}

TEST(JobSpecTest, AnythingButTheRowsOfTheTableIsRefusedWithTheLinksThatTheTopologyHas) {
  for (Topology topology : kTopologies) {
    for (Link link : kLinks) {
      SCOPED_TRACE(TopologyName(topology) + " over " + LinkName(link));
      JobSpec spec;
      spec.topology = topology;
      spec.link = link;
      const absl::Status status = CheckJobSpec(spec);
      EXPECT_EQ(status.ok(), FindBackend(topology, link) != nullptr);
      if (status.ok()) {
        EXPECT_EQ(BackendOf(spec), FindBackend(topology, link)->backend);
      } else {
        for (const BackendTrait& trait : kBackends) {
          if (trait.topology == topology) {
            EXPECT_THAT(std::string(status.message()), HasSubstr(LinkName(trait.link)));
          }
        }
      }
    }
  }
}

TEST(JobSpecTest, WithoutALinkATopologyHasTheOneBetweenHosts) {
  JobSpec spec;
  EXPECT_EQ(BackendOf(spec), Backend::kLocal);
  for (Topology topology : {Topology::kPs, Topology::kRing}) {
    spec.topology = topology;
    EXPECT_EQ(TraitOf(BackendOf(spec)).topology, topology);
    EXPECT_EQ(TraitOf(BackendOf(spec)).link, kLinkBetweenHosts);
  }
}

TEST(JobSpecTest, FramesGoOverTheLinkThatWasChosenOrOverTheOneBetweenHosts) {
  for (Link link : {Link::kGrpc, Link::kTcp}) EXPECT_EQ(FrameLinkOf(link), link);
  for (Link link : {Link::kAuto, Link::kNone, Link::kShm, Link::kGloo}) {
    EXPECT_EQ(FrameLinkOf(link), kLinkBetweenHosts);
  }
}

TEST(JobSpecTest, WhatABackendCarriesSaysWhetherItCompressesAndHasConnections) {
  for (const BackendTrait& trait : kBackends) {
    SCOPED_TRACE(BackendName(trait.backend));
    JobSpec spec = SpecOf(trait);
    EXPECT_EQ(ConnectionsOf(spec) > 0, trait.carries == Carries::kFrames);
    spec.connections = 7;
    EXPECT_EQ(ConnectionsOf(spec), trait.carries == Carries::kFrames ? 7 : 0);
    spec.codec = *ParseCodec("bf16");
    EXPECT_EQ(CheckJobSpec(spec).ok(), trait.carries == Carries::kFrames);
  }
}

TEST(JobSpecTest, OnlyWhoUpdatesAtTheOwnerDoesAndShardsItsState) {
  for (const BackendTrait& trait : kBackends) {
    SCOPED_TRACE(BackendName(trait.backend));
    JobSpec spec = SpecOf(trait);
    EXPECT_EQ(CheckZero(1, spec).ok(), trait.updates_at_owner);
    EXPECT_TRUE(CheckZero(0, spec).ok());
    spec.update = UpdateSite::kOwner;
    EXPECT_EQ(CheckJobSpec(spec).ok(), trait.updates_at_owner);
  }
}

TEST(JobSpecTest, GradientsOneByOneNeedServersThatFramesReach) {
  for (const BackendTrait& trait : kBackends) {
    SCOPED_TRACE(BackendName(trait.backend));
    JobSpec spec = SpecOf(trait);
    spec.update = trait.updates_at_owner ? UpdateSite::kOwner : UpdateSite::kWorker;
    spec.consistency = *ParseConsistency("asp");
    EXPECT_EQ(CheckJobSpec(spec).ok(),
              trait.topology == Topology::kPs && trait.carries == Carries::kFrames);
  }
}

TEST(JobSpecTest, NamesAreReadBackAndOthersRefusedWithAllThatThereAre) {
  for (Topology topology : kTopologies) EXPECT_EQ(*ParseTopology(TopologyName(topology)), topology);
  for (Link link : kLinks) {
    if (link == Link::kNone) continue;
    EXPECT_EQ(*ParseLink(LinkName(link)), link);
  }
  EXPECT_EQ(ParseTopology("star").status().message(),
            "--topology: expected local, ps or ring, found \"star\"");
  EXPECT_EQ(ParseLink("rdma").status().message(),
            "--link: expected auto, grpc, tcp, shm, gloo, nccl or cuda_ipc, found \"rdma\"");
}

}  // namespace
}  // namespace gradsync
