#include "benchmarks/comparison/compare_options.h"

#include <functional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> Names(const CompareOptions& options) {
  const auto configurations = ListConfigurations(options);
  EXPECT_TRUE(configurations.ok()) << configurations.status();
  std::vector<std::string> names;
  if (!configurations.ok()) return names;
  for (const Configuration& configuration : *configurations) {
    names.push_back(Describe(configuration));
  }
  return names;
}

TEST(CompareOptionsTest, DefaultsComparePsAndRingOverBothLinksWithOneAndTwoWorkers) {
  EXPECT_THAT(Names(CompareOptions()),
              ElementsAre("ps over grpc, 1 server, 1 worker", "ps over grpc, 2 servers, 1 worker",
                          "ps over shm, 1 server, 1 worker", "ps over shm, 2 servers, 1 worker",
                          "ring over grpc, 1 worker", "ring over shm, 1 worker",
                          "ps over grpc, 1 server, 2 workers", "ps over grpc, 2 servers, 2 workers",
                          "ps over shm, 1 server, 2 workers", "ps over shm, 2 servers, 2 workers",
                          "ring over grpc, 2 workers", "ring over shm, 2 workers"));
}

TEST(CompareOptionsTest, WhatCannotBeIsLeftOut) {
  CompareOptions options;
  options.topologies = {"local", "ps", "ring"};
  options.workers = {"2"};
  options.servers = {"1"};
  options.links = {"grpc", "gloo"};
  options.updates = {"worker", "owner"};
  EXPECT_THAT(
      Names(options),
      ElementsAre("local, 2 workers", "local, update at owner, 2 workers",
                  "ps over grpc, 1 server, 2 workers",
                  "ps over grpc, update at owner, 1 server, 2 workers", "ring over grpc, 2 workers",
                  "ring over grpc, update at owner, 2 workers", "ring over gloo, 2 workers"));
}

TEST(CompareOptionsTest, OnAnEmulatedNetworkServersArePlacedAndNoMemoryIsShared) {
  CompareOptions options;
  options.bandwidths = {"400mbit"};
  options.workers = {"3"};
  options.servers = {"2", "4"};
  options.placements = {"dedicated", "colocated", "mixed"};
  EXPECT_THAT(Names(options), ElementsAre("ps over grpc, 2 servers, 3 workers, 400mbit",
                                          "ps over grpc, 4 servers, 3 workers, 400mbit",
                                          "ps over grpc, colocated 2 servers, 3 workers, 400mbit",
                                          "ps over grpc, mixed 2 servers, 3 workers, 400mbit",
                                          "ring over grpc, 3 workers, 400mbit"));
}

TEST(CompareOptionsTest, EachBandwidthHasAllJobs) {
  CompareOptions options;
  options.bandwidths = {"400mbit", "1gbit"};
  options.topologies = {"ring"};
  EXPECT_THAT(Names(options),
              ElementsAre("ring over grpc, 1 worker, 400mbit", "ring over grpc, 2 workers, 400mbit",
                          "ring over grpc, 1 worker, 1gbit", "ring over grpc, 2 workers, 1gbit"));
}

CompareOptions OnMeshes(const std::string& meshes) {
  CompareOptions options;
  options.mesh.meshes = meshes;
  options.links = {"grpc"};
  options.servers = {"2"};
  options.mesh.micro_batches = {"4"};
  return options;
}

TEST(CompareOptionsTest, MeshesHaveTheirWorkersAndStagesTheirSchedules) {
  CompareOptions options = OnMeshes("data=2;data=2,pipeline=2;pipeline=3");
  options.mesh.schedules = {"gpipe", "1f1b"};
  // Two servers are too few for three stages.
  EXPECT_THAT(
      Names(options),
      ElementsAre("ps over grpc, data=2, 4 micro-batches, 2 servers, 2 workers",
                  "ring over grpc, data=2, 4 micro-batches, 2 workers",
                  "ps over grpc, data=2,pipeline=2, gpipe, 4 micro-batches, 2 servers, 4 workers",
                  "ps over grpc, data=2,pipeline=2, 1f1b, 4 micro-batches, 2 servers, 4 workers",
                  "ring over grpc, data=2,pipeline=2, gpipe, 4 micro-batches, 4 workers",
                  "ring over grpc, data=2,pipeline=2, 1f1b, 4 micro-batches, 4 workers",
                  "ring over grpc, pipeline=3, gpipe, 4 micro-batches, 3 workers",
                  "ring over grpc, pipeline=3, 1f1b, 4 micro-batches, 3 workers"));
}

TEST(CompareOptionsTest, MicroBatchesAreCutFromTheGlobalBatchAndSplitsAreTold) {
  CompareOptions options = OnMeshes("data=2;pipeline=2");
  options.topologies = {"ring"};
  options.mesh.micro_batches = {"1", "4"};
  options.mesh.splits = "1;auto";
  options.global_batch_size = 64;
  const auto all = ListConfigurations(options);
  ASSERT_TRUE(all.ok()) << all.status();
  std::vector<int64_t> sizes;
  for (const Configuration& c : *all) sizes.push_back(c.batch_size);
  EXPECT_THAT(sizes, ElementsAre(32, 8, 64, 64, 16, 16));
  EXPECT_EQ(Describe((*all)[2]),
            "ring over grpc, pipeline=2, 1f1b, 1 micro-batch, cut before 1, 2 workers");
  EXPECT_THAT(FlagsOfWorkers(options, (*all)[4]),
              AllOf(Contains("--mesh=pipeline=2"), Contains("--micro_batches=4"),
                    Contains("--pipeline_schedule=1f1b"), Contains("--split=1"),
                    Contains("--batch_size=16")));
  EXPECT_THAT(FlagsOfWorkers(options, (*all)[1]),
              AllOf(Contains("--mesh=data=2"), Contains("--micro_batches=4"),
                    Not(Contains(StartsWith("--split")))));
}

TEST(CompareOptionsTest, ReplicasInAProcessAreJobsOfTheirOwn) {
  CompareOptions options;
  options.topologies = {"ring"};
  options.links = {"grpc"};
  options.workers = {"2"};
  options.replicas = {"1", "2"};
  const auto all = ListConfigurations(options);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 2);
  EXPECT_EQ(Describe((*all)[1]), "ring over grpc, 2 replicas in each, 2 workers");
  EXPECT_THAT(FlagsOfWorkers(options, (*all)[1]), Contains("--data_parallel=2"));
}

TEST(CompareOptionsTest, WhatAMeshCannotBeIsRefused) {
  const auto refused = [](const std::string& meshes,
                          const std::function<void(CompareOptions&)>& set, const std::string& why) {
    CompareOptions options = OnMeshes(meshes);
    set(options);
    const absl::Status status = ListConfigurations(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(why));
  };
  using Options = CompareOptions;
  refused(
      "pipeline=2", [](Options& o) { o.workers = {"4"}; }, "--workers: expected none with --mesh");
  // What is the default without a mesh was taken for nothing.
  refused(
      "pipeline=2",
      [](Options& o) {
        o.workers = {"1", "2"};
      },
      "--workers: expected none with --mesh");
  refused(
      "pipeline=2", [](Options& o) { o.zeros = {"2"}; }, "--zero: expected 0 or 1 with --mesh=");
  refused(
      "data=2", [](Options& o) { o.zeros = {"2"}; }, "--micro_batches: expected 1 with --zero=2");
  refused(
      "shard=2", [](Options&) {}, "--zero: expected 1 to 3 with shard=2");
  refused(
      "data=2", [](Options& o) { o.replicas = {"2"}; }, "--data_parallel: expected 1 with");
  refused(
      "data=2", [](Options& o) { o.straggler = "0:2"; }, "--straggler: expected none with");
  refused(
      "data=3", [](Options& o) { o.global_batch_size = 64; },
      "--global_batch_size: expected no --batch_size, and a multiple of 12, for 4 ");
  refused(
      "pipeline=2", [](Options& o) { o.compressions = {"bf16"}; }, "--mesh: expected a job that");
  refused(
      "pipeline=2", [](Options& o) { o.mesh.schedules = {"x"}; }, "--pipeline_schedule: ");
  refused(
      "pipelines=2", [](Options&) {}, "--mesh: ");
}

TEST(CompareOptionsTest, AGlobalBatchIsSharedByTheWorkers) {
  CompareOptions options;
  options.workers = {"1", "4"};
  options.topologies = {"ring"};
  options.links = {"grpc"};
  options.global_batch_size = 64;
  options.worker_flags = {"--momentum=0"};
  options.straggler = "0:2";
  const auto configurations = ListConfigurations(options);
  ASSERT_TRUE(configurations.ok()) << configurations.status();
  EXPECT_EQ((*configurations)[0].batch_size, 64);
  EXPECT_EQ((*configurations)[1].batch_size, 16);
  const std::vector<std::string> flags = FlagsOfWorkers(options, (*configurations)[1]);
  EXPECT_THAT(flags, Contains("--batch_size=16"));
  EXPECT_THAT(flags, Contains("--topology=ring"));
  EXPECT_THAT(flags, Contains("--momentum=0"));
  EXPECT_THAT(flags, Contains("--straggler=0:2"));
}

TEST(CompareOptionsTest, EveryMistakeNamesItsFlagWhatWasExpectedAndWhatCame) {
  using Options = CompareOptions;
  const std::vector<std::pair<std::function<void(Options&)>, std::string>> cases = {
      {[](Options& o) { o.topologies = {"star"}; },
       "--topology: expected some of ps, ring, local, found \"star\""},
      {[](Options& o) { o.topologies = {}; }, "--topology: "},
      {[](Options& o) {
         o.workers = {"1", "0"};
       },
       "--workers: expected numbers of at least 1, such as 1,2, found \"0\""},
      {[](Options& o) { o.workers = {"two"}; }, "--workers: "},
      {[](Options& o) { o.workers = {""}; }, "--workers: "},
      {[](Options& o) { o.servers = {"0"}; }, "--servers: "},
      {[](Options& o) { o.placements = {"colocated"}; }, "--placement: expected dedicated"},
      {[](Options& o) { o.placements = {"everywhere"}; }, "--placement: expected some of"},
      {[](Options& o) {
         o.bandwidths = {"400mbit", "fast"};
       },
       "--bandwidth: expected a bandwidth"},
      {[](Options& o) {
         o.bandwidths = {"400mbit", "400mbit"};
       },
       "--bandwidth: expected each bandwidth once, found \"400mbit\""},
      {[](Options& o) { o.rounds = 0; }, "--rounds: expected at least 1, found \"0\""},
      {[](Options& o) {
         o.bandwidths = {"400mbit"};
         o.links = {"shm"};
       },
       "--link: expected grpc, tcp, gloo or auto with --bandwidth"},
      {[](Options& o) {
         o.bandwidths = {"400mbit"};
         o.placements = {"mixed"};
         o.servers = {"2"};
       },
       "--placement: expected at most as many --servers as --workers"},
      {[](Options& o) { o.links = {"rdma"}; }, "--link: expected some of auto, grpc, tcp"},
      {[](Options& o) {
         o.bandwidths = {"400mbit"};
         o.links = {"grpc", "nccl"};
       },
       "--link: expected grpc, tcp, gloo or auto with --bandwidth, past which NCCL would go"},
      {[](Options& o) {
         o.topologies = {"ps"};
         o.links = {"grpc", "nccl"};
       },
       "--link: expected grpc, or ring among --topology, found \"nccl\""},
      {[](Options& o) {
         o.links = {"gloo", "nccl"};
       },
       "--link: expected grpc too, for --topology=ps"},
      {[](Options& o) {
         o.compute.device = "cuda";
         o.straggler = "0:2";
       },
       "--straggler: expected none on a GPU"},
      {[](Options& o) { o.compute.precision = Precision::kFp16; }, "--precision: "},
      {[](Options& o) { o.worker_flags = {"--device=cuda"}; }, "--device: expected it before"},
      {[](Options& o) { o.links = {"gloo"}; }, "--link: expected grpc too, for --topology=ps"},
      {[](Options& o) {
         o.topologies = {"ps"};
         o.links = {"grpc", "gloo"};
       },
       "--link: expected grpc, or ring among --topology, found \"gloo\""},
      {[](Options& o) {
         o.topologies = {"ring"};
         o.links = {"gloo"};
         o.updates = {"owner"};
       },
       "--update: expected worker with --link=gloo, which has no reduce-scatter, found \"owner\""},
      {[](Options& o) { o.updates = {"nobody"}; }, "--update: "},
      {[](Options& o) { o.model = "resnet19"; },
       "--model: expected some of resnet18, resnet34, resnet50, resnet101, resnet152, "
       "resnext50_32x4d, resnext101_32x8d, resnext101_64x4d, wide_resnet50_2, wide_resnet101_2, "
       "vgg16, vgg16_bn, vit_s_16, gpt, mlp, found \"resnet19\""},
      {[](Options& o) { o.stem = "root"; }, "--stem: "},
      {[](Options& o) { o.data = "mnist"; }, "--data: expected synthetic, "},
      {[](Options& o) { o.data = "cifar10:/no/such/folder"; }, "--data: "},
      {[](Options& o) { o.steps = 3; },
       "--steps: expected more than --warmup_steps=3, found \"3\""},
      {[](Options& o) { o.warmup_steps = -1; }, "--warmup_steps: "},
      {[](Options& o) { o.batch_size = -1; }, "--batch_size: "},
      {[](Options& o) { o.batch_size = o.global_batch_size = 8; }, "--global_batch_size: "},
      {[](Options& o) { o.global_batch_size = 9; },
       "--global_batch_size: expected a multiple of 2 workers, found \"9\""},
      {[](Options& o) { o.threads = 0; }, "--threads: "},
      {[](Options& o) { o.lr = -1; }, "--lr: "},
      {[](Options& o) { o.straggler = "1"; }, "--straggler: expected RANK:FACTOR"},
      {[](Options& o) { o.straggler = "1:3"; },
       "--straggler: expected a rank from 0 to 0 of 1 workers, found \"1:3\""},
      {[](Options& o) { o.worker_flags = {"--straggler=0:2"}; }, "--straggler: "},
      {[](Options& o) { o.timeout = absl::ZeroDuration(); }, "--timeout: "},
      {[](Options& o) { o.worker_flags = {"--rank=1"}; }, "--rank: "},
      {[](Options& o) { o.worker_flags = {"--zero=2"}; }, "--zero: expected it before"},
      {[](Options& o) { o.worker_flags = {"--mesh=pipeline=2"}; },
       "--mesh: expected it before the"},
      {[](Options& o) { o.mesh.micro_batches = {"8"}; },
       "--micro_batches: expected none without --mesh, found \"8\""},
      {[](Options& o) { o.mesh.splits = "4"; }, "--split: expected none without --mesh"},
      {[](Options& o) { o.zeros = {"4"}; }, "--zero: expected some of 0 to 3"},
      {[](Options& o) { o.worker_flags = {"ring"}; },
       "expected worker flags, --name=value, after --, found \"ring\""},
  };
  for (const auto& [change, message] : cases) {
    CompareOptions options;
    change(options);
    const absl::Status status = ListConfigurations(options).status();
    EXPECT_FALSE(status.ok()) << message;
    EXPECT_THAT(std::string(status.message()), StartsWith(message));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

TEST(CompareOptionsTest, NcclIsALinkOfRingsAndAllWorkersGetTheDevice) {
  CompareOptions options;
  options.workers = {"2"};
  options.servers = {"1"};
  options.links = {"shm", "nccl"};
  options.updates = {"worker", "owner"};
  options.compute = {"cuda", Precision::kBf16, true, false};
  EXPECT_THAT(
      Names(options),
      ElementsAre("ps over shm, 1 server, 2 workers",
                  "ps over shm, update at owner, 1 server, 2 workers", "ring over shm, 2 workers",
                  "ring over shm, update at owner, 2 workers", "ring over nccl, 2 workers",
                  "ring over nccl, update at owner, 2 workers"));
  const auto configurations = ListConfigurations(options);
  for (const Configuration& configuration : *configurations) {
    const std::vector<std::string> flags = FlagsOfWorkers(options, configuration);
    EXPECT_THAT(flags, Contains("--device=cuda"));
    EXPECT_THAT(flags, Contains("--precision=bf16"));
    EXPECT_THAT(flags, Contains("--channels_last"));
  }
}

absl::Status AnyGpu(int) { return absl::OkStatus(); }

TEST(CompareOptionsTest, OffloadIsOwnersOnTheHostForGpus) {
  CompareOptions options;
  options.topologies = {"ring"};
  options.workers = {"2"};
  options.compute.device = "cuda";
  options.offloads = {"none", "optimizer", "parameters"};
  ASSERT_EQ(ResolveLinksAndDevice(AnyGpu, &options), absl::OkStatus());
  EXPECT_THAT(
      Names(options),
      ElementsAre("ring over grpc, 2 workers", "ring over grpc, update at owner, zero=1, 2 workers",
                  "ring over grpc, update at owner, zero=3, 2 workers", "ring over shm, 2 workers",
                  "ring over shm, update at owner, zero=1, 2 workers",
                  "ring over shm, update at owner, zero=3, 2 workers"));
}

TEST(CompareOptionsTest, WhatDoesNotGoTogetherWithOffloadIsRefused) {
  using Change = std::function<void(CompareOptions&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](CompareOptions& o) { o.offloads = {"all"}; },
       "--offload: expected some of none, optimizer and parameters, found \"all\""},
      {[](CompareOptions& o) { o.offloads = {}; }, "--offload: expected some of none"},
      {[](CompareOptions& o) { o.compute.device = "cpu"; },
       "--offload: expected none with --device=cpu, where all is on the host, found \"optimizer\""},
      {[](CompareOptions& o) {
         o.links = {"grpc", "gloo"};
       },
       "--link: expected grpc, tcp or shm with --offload"},
      {[](CompareOptions& o) { o.zeros = {"1"}; }, "--zero: expected none with --offload"},
  };
  for (const auto& [change, message] : cases) {
    CompareOptions options;
    options.topologies = {"ring"};
    options.workers = {"2"};
    options.compute.device = "cuda";
    options.offloads = {"none", "optimizer"};
    change(options);
    const absl::Status status = ResolveLinksAndDevice(AnyGpu, &options);
    EXPECT_THAT(std::string(status.message()), StartsWith(message));
  }
}

TEST(CompareOptionsTest, EachCodecRunsWhereItCan) {
  CompareOptions options;
  options.topologies = {"ps", "ring", "local"};
  options.workers = {"2"};
  options.servers = {"1"};
  options.compressions = {"none", "bf16", "topk:0.01"};
  options.links = {"grpc", "shm"};
  const auto configurations = ListConfigurations(options);
  ASSERT_TRUE(configurations.ok()) << configurations.status();
  std::vector<std::string> names;
  for (const Configuration& c : *configurations) names.push_back(Describe(c));
  EXPECT_THAT(names, ElementsAre("ps over grpc, 1 server, 2 workers",
                                 "ps over grpc, bf16, 1 server, 2 workers",
                                 "ps over grpc, topk:0.01, 1 server, 2 workers",
                                 "ps over shm, 1 server, 2 workers", "ring over grpc, 2 workers",
                                 "ring over grpc, bf16, 2 workers", "ring over shm, 2 workers",
                                 "local, 2 workers"));
  EXPECT_EQ(FlagsOfWorkers(options, (*configurations)[1]).back(), "--compression=bf16");
  options.topologies = {"ring", "local"};
  EXPECT_THAT(std::string(ListConfigurations(options).status().message()),
              ::testing::HasSubstr("--compression: expected ps among --topology for topk"));
  options.compressions = {"fp8"};
  EXPECT_THAT(std::string(ListConfigurations(options).status().message()),
              ::testing::HasSubstr("--compression: expected none, fp16, bf16 or topk:R"));
  options.compressions = {"fp16"};
  options.links = {"gloo"};
  EXPECT_THAT(std::string(ListConfigurations(options).status().message()),
              ::testing::HasSubstr("--compression: "));
}

TEST(CompareOptionsTest, EachConsistencyRunsWhereItCanBesideBsp) {
  CompareOptions options;
  options.topologies = {"ps", "ring"};
  options.workers = {"4"};
  options.servers = {"2"};
  options.updates = {"worker", "owner"};
  options.consistencies = {"bsp", "ssp:2", "asp"};
  options.links = {"grpc", "shm"};
  const auto configurations = ListConfigurations(options);
  ASSERT_TRUE(configurations.ok()) << configurations.status();
  std::vector<std::string> names;
  for (const Configuration& c : *configurations) names.push_back(Describe(c));
  EXPECT_THAT(names,
              ElementsAre("ps over grpc, 2 servers, 4 workers",
                          "ps over grpc, update at owner, 2 servers, 4 workers",
                          "ps over grpc, update at owner, ssp:2, 2 servers, 4 workers",
                          "ps over grpc, update at owner, asp, 2 servers, 4 workers",
                          "ps over shm, 2 servers, 4 workers",
                          "ps over shm, update at owner, 2 servers, 4 workers",
                          "ring over grpc, 4 workers", "ring over grpc, update at owner, 4 workers",
                          "ring over shm, 4 workers", "ring over shm, update at owner, 4 workers"));
  EXPECT_EQ(FlagsOfWorkers(options, (*configurations)[2]).back(), "--consistency=ssp:2");
}

TEST(CompareOptionsTest, AConsistencyThatCannotBeIsRefusedByItsFlag) {
  CompareOptions valid;
  valid.updates = {"owner"};
  const auto message = [](const CompareOptions& options) {
    return std::string(ListConfigurations(options).status().message());
  };
  for (const std::string value : {"ssp:-1", "ssp", "ssp:x", "later"}) {
    CompareOptions options = valid;
    options.consistencies = {"bsp", value};
    EXPECT_THAT(message(options), HasSubstr("--consistency: expected bsp, ssp:S"));
    EXPECT_THAT(message(options), HasSubstr("found \"" + value + "\""));
  }
  valid.consistencies = {"asp"};
  CompareOptions ring = valid;
  ring.topologies = {"ring"};
  EXPECT_THAT(message(ring), HasSubstr("--consistency: expected bsp without ps"));
  CompareOptions at_worker = valid;
  at_worker.updates = {"worker"};
  EXPECT_THAT(message(at_worker), HasSubstr("--consistency: expected bsp without owner"));
  CompareOptions shm = valid;
  shm.links = {"shm"};
  EXPECT_THAT(message(shm), HasSubstr("--consistency: expected bsp without grpc"));
}

}  // namespace
}  // namespace gradsync
