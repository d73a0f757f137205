#include "benchmarks/records/run_job.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RunJobTest, WhatIsWrittenIsReadBack) {
  PlacedJob job;
  job.spec.topology = Topology::kPs;
  job.spec.link = Link::kGrpc;
  job.spec.update = UpdateSite::kOwner;
  job.spec.consistency = *ParseConsistency("ssp:3");
  job.spec.codec = *ParseCodec("topk:0.1");
  job.workers = 4;
  job.servers = 2;
  job.placement = Placement::kMixed;
  job.bandwidth = "1gbit";
  proto::Run run;
  SetKind(job.spec, &run);
  SetPlaced(job, &run);
  EXPECT_EQ(run.compression(), "topk:0.1");
  EXPECT_TRUE(SameJob(JobOf(run), job));
}

TEST(RunJobTest, WordsThatAreMissingOrOfOthersAreTheUsualOnes) {
  proto::Run run;
  run.set_link("tcp");
  const PlacedJob job = JobOf(run);
  EXPECT_EQ(job.spec.topology, Topology::kRing);
  EXPECT_EQ(job.spec.link, Link::kNone);
  EXPECT_TRUE(job.spec.consistency.bulk());
  EXPECT_FALSE(job.spec.codec.compresses());
  EXPECT_EQ(job.placement, Placement::kNone);
  EXPECT_EQ(PrecisionOf(run), Precision::kFp32);
}

}  // namespace
}  // namespace gradsync
