#include "worker/parallel_flags.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/gpu/fake_gpu.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/sharding.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "worker/job.h"

ABSL_DECLARE_FLAG(std::string, offload);

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// --offload, with the flag and the job as //worker has them, on the fake GPU; for what is sharded
// tests/offload_test.cc has jobs of several ranks.

// One worker, which is the owner of all.
JobOptions SmallJob(const std::string& name) {
  JobOptions job;
  job.trainer.model.name = "mlp";
  job.trainer.steps = 4;
  job.trainer.batch_size = 4;
  job.trainer.optimizer.groups.emplace_back();
  job.trainer.optimizer.groups[0].momentum = 0.9;
  job.trainer.recipe.base = 0.05;
  job.join.device.device = "cuda:0";
  job.log_every = 0;
  job.metrics_json = absl::StrCat(testing::TempDir(), "/", name, ".json");
  return job;
}

// Runs `job` on `gpu`, or on the CPU where that is null.
proto::WorkerMetrics Train(JobOptions job, std::shared_ptr<FakeGpu> gpu) {
  if (gpu == nullptr) job.join.device.device = "cpu";
  job.join.sync.gpu = gpu;
  const std::string file = job.metrics_json;
  const JobOutcome outcome = RunJob(std::move(job));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  std::stringstream json;
  json << std::ifstream(file).rdbuf();
  proto::WorkerMetrics metrics;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json.str(), &metrics).ok());
  return metrics;
}

absl::Status Offload(absl::string_view what, JobOptions* job) {
  absl::SetFlag(&FLAGS_offload, std::string(what));
  return OffloadFromFlags(job);
}

TEST(OffloadTest, TheOptimizerRunsOnTheHostWithTheBitsOfTheCpu) {
  const proto::WorkerMetrics cpu = Train(SmallJob("cpu"), nullptr);
  ASSERT_THAT(cpu.params_sha256(), SizeIs(64));
  const auto none = std::make_shared<FakeGpu>();
  JobOptions on_gpu = SmallJob("none");
  ASSERT_TRUE(Offload("none", &on_gpu).ok());
  EXPECT_EQ(Train(on_gpu, none).params_sha256(), cpu.params_sha256());
  EXPECT_GT(none->calls("SgdStep"), 0);

  const auto gpu = std::make_shared<FakeGpu>();
  JobOptions offloaded = SmallJob("optimizer");
  ASSERT_TRUE(Offload("optimizer", &offloaded).ok());
  EXPECT_EQ(offloaded.join.sync.job.update, UpdateSite::kOwner);
  const proto::WorkerMetrics metrics = Train(offloaded, gpu);
  EXPECT_EQ(metrics.params_sha256(), cpu.params_sha256());
  EXPECT_EQ(metrics.update(), "owner");
  EXPECT_EQ(gpu->calls("SgdStep"), 0);
  // Its memory has no state of an optimizer: parameters and gradients are there in both.
  EXPECT_LT(gpu->calls("AllocateDevice"), none->calls("AllocateDevice"));
}

TEST(OffloadTest, WhereNoGpuIsFoundItIsRefused) {
  for (const std::string what : {"optimizer", "parameters"}) {
    JobOptions job = SmallJob("auto");
    job.join.device.device = "auto";
    job.join.sync.job.topology = Topology::kRing;
    ASSERT_TRUE(Offload(what, &job).ok());
    EXPECT_EQ(CheckOffload(job).message(),
              absl::StrCat("--offload: expected none where --device=auto finds no GPU, found \"",
                           what, "\""));
    job.join.sync.gpu = std::make_shared<FakeGpu>();
    EXPECT_TRUE(CheckOffload(job).ok());
  }
}

TEST(OffloadTest, ParametersOnTheHostAreShardedAndWhatCannotBeIsLeftAsItWas) {
  JobOptions job = SmallJob("parameters");
  job.join.sync.job.topology = Topology::kRing;
  JobOptions clipped = job;
  clipped.trainer.max_norm = 1;
  const absl::Status refused = Offload("parameters", &clipped);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--offload: expected none or optimizer"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max_norm"));
  EXPECT_FALSE(clipped.trainer.shard_parameters);
  ASSERT_TRUE(Offload("parameters", &job).ok());
  EXPECT_TRUE(job.trainer.shard_parameters);
  EXPECT_EQ(job.trainer.plan.slots.gradients, kZeroGradientSlots);
  EXPECT_EQ(job.join.sync.job.update, UpdateSite::kOwner);
}

}  // namespace
}  // namespace gradsync
