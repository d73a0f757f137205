#include "benchmarks/ranks/rank_spec.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "benchmarks/records/proto_json.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RankSpecTest, AJobIsReadAsItWasWritten) {
  JobSpec job;
  job.topology = Topology::kPs;
  job.link = Link::kCudaIpc;
  job.update = UpdateSite::kOwner;
  job.consistency = *ParseConsistency("ssp:3");
  job.codec = *ParseCodec("topk:0.01");
  job.owners = 2;
  job.connections = 3;
  proto::RankSpec spec;
  SetJob(job, &spec);
  const absl::StatusOr<JobSpec> read = JobOfSpec(spec);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->topology, job.topology);
  EXPECT_EQ(read->link, job.link);
  EXPECT_EQ(read->update, job.update);
  EXPECT_EQ(read->consistency, job.consistency);
  EXPECT_EQ(read->codec, job.codec);
  EXPECT_EQ(read->owners, 2);
  EXPECT_EQ(read->connections, 3);
  spec.mutable_job()->set_topology("star");
  EXPECT_EQ(JobOfSpec(spec).status(), ParseTopology("star").status());
}

TEST(RankSpecTest, TheFilesAreThereUntilTheirOwnerGoes) {
  proto::RankSpec spec;
  proto::RankSpec::Replay& replay = *spec.mutable_replay();
  replay.set_compute_scale(0.1);
  replay.mutable_profile()->set_forward_us(1e6 / 3);
  std::unique_ptr<RankFiles> files = RankFiles::Create(spec, absl::Milliseconds(1500)).value();
  const std::string path(absl::StripPrefix(files->flag(), "--spec="));
  proto::RankSpec read;
  ASSERT_EQ(ReadJson(path, &read), absl::OkStatus());
  EXPECT_EQ(read.timeout_seconds(), 1.5);
  EXPECT_EQ(read.replay().compute_scale(), 0.1);
  EXPECT_EQ(read.replay().profile().forward_us(), 1e6 / 3);
  const std::string folder = std::filesystem::path(path).parent_path();
  EXPECT_EQ(read.start_line(), folder + "/start_line");
  files.reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace gradsync
