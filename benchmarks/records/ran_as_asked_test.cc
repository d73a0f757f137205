#include "benchmarks/records/ran_as_asked.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"

namespace gradsync {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
