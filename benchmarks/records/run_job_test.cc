#include "benchmarks/records/run_job.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"

namespace gradsync {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  run.set_link("tls");
  const PlacedJob job = JobOf(run);
  EXPECT_EQ(job.spec.topology, Topology::kRing);
  EXPECT_EQ(job.spec.link, Link::kNone);
  EXPECT_TRUE(job.spec.consistency.bulk());
  EXPECT_FALSE(job.spec.codec.compresses());
  EXPECT_EQ(job.placement, Placement::kNone);
  EXPECT_EQ(PrecisionOf(run), Precision::kFp32);
}

proto::WorkerMetrics Ran(const std::string& topology, const std::string& link,
                         const std::string& update) {
  proto::WorkerMetrics metrics;
  metrics.set_topology(topology);
  metrics.set_link(link);
  metrics.set_update(update);
  return metrics;
}

JobSpec Asked(Topology topology, Link link, UpdateSite update) {
  JobSpec spec;
  spec.topology = topology;
  spec.link = link;
  spec.update = update;
  return spec;
}

TEST(RanAsAskedTest, WhatRanIsWhatWasAskedFor) {
  EXPECT_EQ(CheckRanAsAsked(Asked(Topology::kRing, Link::kGloo, UpdateSite::kWorker),
                            Ran("ring", "gloo", "worker")),
            absl::OkStatus());
  EXPECT_EQ(CheckRanAsAsked(Asked(Topology::kPs, Link::kAuto, UpdateSite::kOwner),
                            Ran("ps", "shm", "owner")),
            absl::OkStatus());
  EXPECT_EQ(CheckRanAsAsked(Asked(Topology::kLocal, Link::kAuto, UpdateSite::kWorker),
                            Ran("local", "", "worker")),
            absl::OkStatus());
}

// Rows of a ring over Gloo were published that were of one over gRPC.
TEST(RanAsAskedTest, AnotherBackendIsAnErrorWithBoth) {
  const absl::Status status = CheckRanAsAsked(
      Asked(Topology::kRing, Link::kGloo, UpdateSite::kWorker), Ran("ring", "grpc", "worker"));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("ring over gloo"), HasSubstr("ring over grpc")));
  EXPECT_FALSE(CheckRanAsAsked(Asked(Topology::kRing, Link::kShm, UpdateSite::kWorker),
                               Ran("ps", "shm", "worker"))
                   .ok());
  EXPECT_FALSE(CheckRanAsAsked(Asked(Topology::kPs, Link::kShm, UpdateSite::kWorker),
                               Ran("ps", "shm", "owner"))
                   .ok());
  EXPECT_FALSE(
      CheckRanAsAsked(Asked(Topology::kRing, Link::kAuto, UpdateSite::kWorker), Ran("", "", ""))
          .ok());
}

}  // namespace
}  // namespace gradsync
