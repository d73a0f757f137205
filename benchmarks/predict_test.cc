// Runs the program itself.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "benchmarks/records/proto_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::vector<std::string> errors;
};

Outcome Predict(const std::vector<std::string>& flags) {
  std::vector<std::string> argv = {"benchmarks/predict"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  TestProgram program(argv);
  Outcome outcome;
  outcome.exit_code = program.Finish(absl::Seconds(50)).code;
  outcome.out = absl::StrJoin(program.out(), "\n");
  outcome.errors = program.err();
  return outcome;
}

TEST(PredictTest, FourThousandWorkersArePredictedAndWritten) {
  const std::string path = testing::TempDir() + "/predict.json";
  const Outcome outcome = Predict({"--worker=16,4096", "--server=n", "--bandwidths=10gbit",
                                   "--topology=ring,ps", "--json=" + path});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("resnet50, 102.2 MB of gradients"));
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(path, &records), absl::OkStatus());
  EXPECT_EQ(records.runs_size(), 0);
  ASSERT_EQ(records.predictions_size(), 6);  // ring, dedicated, colocated
  EXPECT_EQ(records.predictions(5).workers(), 4096);
  EXPECT_EQ(records.predictions(5).placement(), "colocated");
  EXPECT_GT(records.predictions(5).step_ms_p50(), 557);
}

TEST(PredictTest, AdviceIsOneSentenceOnOneLine) {
  for (const char* model : {"resnet18", "resnet50", "vgg16", "bert_large"}) {
    const Outcome outcome = Predict({"--advise", "--workers=8", "--model", model});
    EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
    EXPECT_THAT(outcome.out, HasSubstr("on 8 workers at 1gbit use"));
    EXPECT_EQ(outcome.out.find('\n'), std::string::npos);
  }
}

TEST(PredictTest, AdviceIsWrittenWithAllThatWasTried) {
  const std::string path = testing::TempDir() + "/advice.json";
  const Outcome outcome =
      Predict({"--advise", "--workers=2,4", "--model=resnet18", "--straggler=1:2", "--servers=2",
               "--placement=dedicated,colocated,mixed", "--json=" + path});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("For resnet18 on 4 workers at 1gbit use "));
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(path, &records), absl::OkStatus());
  ASSERT_EQ(records.predictions_size(), 1 + 1 + 2 * 2);
  for (const proto::Run& run : records.predictions()) EXPECT_EQ(run.straggler(), "1:2");
  const Outcome stale = Predict({"--advise", "--workers=2", "--model=resnet18", "--servers=1",
                                 "--update=owner", "--consistency=ssp:2"});
  EXPECT_EQ(stale.exit_code, 0) << absl::StrJoin(stale.errors, "\n");
  EXPECT_THAT(stale.out, HasSubstr("; no ring can do what was asked for."));
}

// Exchanges as a link of 1 Gbit/s has them, of which two of a machine's cores spent half their time.
TEST(PredictTest, CoresThatEmulatedHostsShareCostWhatTheProbeSays) {
  proto::RunRecords probe;
  probe.mutable_machine()->set_cores(2);
  for (const double bytes : {1 << 20, 4 << 20, 16 << 20}) {
    proto::Run& run = *probe.add_runs();
    run.set_library("gradsync");
    run.set_topology("ring");
    run.set_update("worker");
    run.set_workers(2);
    run.set_bandwidth("1gbit");
    run.set_bytes(bytes);
    run.set_bucket_bytes(25 << 20);
    run.set_chunk_bytes(96 << 10);
    run.set_time_us_p50(300 + bytes / 118);
    run.set_cpu_share(0.5);
  }
  const std::string file = testing::TempDir() + "/probe.json";
  const std::string path = testing::TempDir() + "/with_cores.json";
  ASSERT_EQ(WriteJson(file, probe), absl::OkStatus());
  const auto steps = [&](const std::string& cores) {
    const Outcome outcome = Predict({"--probe=" + file, "--cores=" + cores, "--model=vgg16",
                                     "--workers=2,8", "--topology=ring", "--json=" + path});
    EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
    EXPECT_EQ(outcome.out.find("an end of a message takes one of") != std::string::npos,
              cores != "0");
    proto::RunRecords records;
    EXPECT_EQ(ReadJson(path, &records), absl::OkStatus());
    return std::make_pair(records.predictions(0).exposed_ms_p50(),
                          records.predictions(1).exposed_ms_p50());
  };
  const auto own = steps("0");
  const auto shared = steps("2");
  EXPECT_NEAR(shared.first / own.first, 1, 0.1);  // as the probe: cores are no limit
  EXPECT_GT(shared.second, 1.8 * own.second);     // seven times its bytes
}

TEST(PredictTest, MeshesArePredictedAndAdvisedOn) {
  const std::string path = testing::TempDir() + "/meshes.json";
  const Outcome table =
      Predict({"--model=resnet18", "--mesh=data=2,pipeline=2;pipeline=4", "--servers=2",
               "--pipeline_schedule=gpipe,1f1b", "--micro_batches=1,2,4,8", "--json=" + path});
  EXPECT_EQ(table.exit_code, 0) << absl::StrJoin(table.errors, "\n");
  EXPECT_THAT(table.out, HasSubstr("resnet18, 44.7 MB of gradients, 10 blocks"));
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(path, &records), absl::OkStatus());
  ASSERT_EQ(records.predictions_size(), 8 * (3 + 1));  // ring, dedicated, colocated; ring
  for (const proto::Run& run : records.predictions()) {
    EXPECT_EQ(run.workers(), 4);
    EXPECT_GT(run.samples_per_s(), 0);
    EXPECT_GT(run.activation_bytes(), 0);
  }
  const Outcome advice = Predict({"--model=resnet18", "--mesh=auto", "--workers=8", "--advise",
                                  "--micro_batches=1,4", "--bandwidth=400mbit"});
  EXPECT_EQ(advice.exit_code, 0) << absl::StrJoin(advice.errors, "\n");
  EXPECT_THAT(advice.out, HasSubstr("For resnet18 on 8 workers at 400mbit use data="));
  EXPECT_EQ(advice.out.find('\n'), std::string::npos);
  EXPECT_THAT(Predict({"--model=vgg16", "--mesh=pipeline=2"}).errors,
              ElementsAre(HasSubstr("vgg16: expected blocks")));
}

TEST(PredictTest, WhatOwnersKeepIsPredictedForAnyModelThatHasBlocks) {
  const std::string path = testing::TempDir() + "/zero.json";
  const Outcome outcome =
      Predict({"--model=resnet18", "--workers=4", "--servers=4", "--placement=dedicated",
               "--zero=0,2,3", "--bucket_bytes=2MiB", "--json=" + path});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("worker keeps"));
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(path, &records), absl::OkStatus());
  ASSERT_EQ(records.predictions_size(), 2 * 3);
  for (int i = 0; i < 6; ++i) {
    const proto::Run& run = records.predictions(i);
    EXPECT_EQ(run.zero(), i % 3 == 0 ? 0 : i % 3 + 1);
    EXPECT_EQ(run.update(), run.zero() == 0 ? "worker" : "owner");
    EXPECT_GT(run.step_ms_p50(), 0);
    // More for each gives up, and gradients of two buckets at a time are less than all.
    if (run.zero() == 2) {
      EXPECT_LT(run.worker_memory_bytes(), records.predictions(i - 1).worker_memory_bytes());
      EXPECT_EQ(run.wire_tx_bytes_max_node(), records.predictions(i - 1).wire_tx_bytes_max_node());
    }
  }
  EXPECT_THAT(Predict({"--model=vgg16", "--zero=3", "--workers=2"}).errors,
              ElementsAre(HasSubstr("vgg16: expected blocks")));
  EXPECT_THAT(Predict({"--zero=2", "--workers=128"}).errors,
              ElementsAre(HasSubstr("--zero: expected 0 or 1 with more than 64 workers")));
  EXPECT_THAT(Predict({"--zero=3", "--compression=bf16"}).errors,
              ElementsAre(HasSubstr("--zero: expected 0 to 2 with --compression")));
  EXPECT_THAT(Predict({"--model=resnet18", "--split=4"}).errors,
              ElementsAre(HasSubstr("--split: expected none without --mesh, found \"4\"")));
  EXPECT_THAT(Predict({"--model=resnet18", "--zero=2", "--mesh=pipeline=2"}).errors,
              ElementsAre(HasSubstr("--zero: expected 0 or 1 with --mesh")));
}

TEST(PredictTest, SlicesArePredictedFromProfilesOfSlices) {
  const std::string path = testing::TempDir() + "/slices.json";
  const std::vector<std::string> meshes = {"--model=gpt", "--mesh=data=4;data=2,tensor=2;tensor=4",
                                           "--topology=ring", "--micro_batches=2",
                                           "--json=" + path};
  const Outcome table = Predict(meshes);
  EXPECT_EQ(table.exit_code, 0) << absl::StrJoin(table.errors, "\n");
  EXPECT_THAT(table.out, HasSubstr("gpt, 43.8 MB of gradients, 8 blocks"));
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(path, &records), absl::OkStatus());
  ASSERT_EQ(records.predictions_size(), 3);
  for (int i : {1, 2}) {
    EXPECT_LT(records.predictions(i).worker_memory_bytes(),
              records.predictions(i - 1).worker_memory_bytes());
    EXPECT_LT(records.predictions(i).activation_bytes(),
              records.predictions(i - 1).activation_bytes());
  }
  std::vector<std::string> less = meshes;
  less.insert(less.end(), {"--sequence_parallel", "--activation_checkpointing"});
  EXPECT_EQ(Predict(less).exit_code, 0);
  proto::RunRecords smaller;
  ASSERT_EQ(ReadJson(path, &smaller), absl::OkStatus());
  ASSERT_EQ(smaller.predictions_size(), 3);
  for (int i : {0, 1, 2}) {
    EXPECT_LT(smaller.predictions(i).activation_bytes(), records.predictions(i).activation_bytes());
  }
  const Outcome advice = Predict({"--model=gpt", "--mesh=auto", "--workers=4", "--advise",
                                  "--micro_batches=1,2", "--bandwidth=10gbit"});
  EXPECT_EQ(advice.exit_code, 0) << absl::StrJoin(advice.errors, "\n");
  EXPECT_THAT(advice.out, HasSubstr("For gpt on 4 workers at 10gbit use data="));
  EXPECT_THAT(Predict({"--model=resnet18", "--mesh=tensor=2"}).errors,
              ElementsAre(HasSubstr("--profile: expected one recorded with --mesh=tensor=2")));
  EXPECT_THAT(Predict({"--model=gpt", "--mesh=pipeline=2,tensor=2"}).errors,
              ElementsAre(HasSubstr("--mesh: expected stages or slices")));
  EXPECT_THAT(Predict({"--model=resnet18", "--sequence_parallel"}).errors,
              ElementsAre(HasSubstr("--sequence_parallel: expected false without slices")));
  EXPECT_THAT(Predict({"--model=vgg16", "--activation_checkpointing"}).errors,
              ElementsAre(HasSubstr("vgg16: expected blocks")));
}

TEST(PredictTest, AlongShardOwnersKeepForAll) {
  const Outcome table = Predict({"--model=resnet18", "--mesh=shard=4", "--zero=1,2,3",
                                 "--micro_batches=1", "--topology=ring"});
  EXPECT_EQ(table.exit_code, 0) << absl::StrJoin(table.errors, "\n");
  EXPECT_THAT(table.out, HasSubstr("shard=4"));
  EXPECT_THAT(Predict({"--model=resnet18", "--mesh=shard=4"}).errors,
              ElementsAre(HasSubstr("--zero: expected 1 to 3 with shard=4 (--mesh)")));
  EXPECT_THAT(Predict({"--model=resnet18", "--mesh=data=2,shard=2", "--zero=1"}).errors,
              ElementsAre(HasSubstr("--mesh: expected data=1 with shard")));
}

TEST(PredictTest, ReplicasOfAProcessAreAColumnWhereThereAreAny) {
  const std::string path = testing::TempDir() + "/replicas.json";
  const Outcome outcome = Predict({"--workers=1", "--topology=local", "--data_parallel=1,4",
                                   "--device_bandwidth=32gbit", "--model=vgg16", "--json=" + path});
  EXPECT_EQ(outcome.exit_code, 0) << absl::StrJoin(outcome.errors, "\n");
  EXPECT_THAT(outcome.out, HasSubstr("replicas"));
  proto::RunRecords records;
  ASSERT_EQ(ReadJson(path, &records), absl::OkStatus());
  ASSERT_EQ(records.predictions_size(), 2);
  const proto::Run& run = records.predictions(1);
  EXPECT_EQ(run.data_parallel(), 4);
  EXPECT_DOUBLE_EQ(run.reduce_ms_p50(), 1e3 * 3 * run.bytes() / 4e9);
  EXPECT_THAT(Predict({"--workers=2"}).out, Not(HasSubstr("replicas")));
}

// Flags are read in order, so that all before the first mistake were understood.
TEST(PredictTest, OtherSpellingsOfFlagsAreUnderstood) {
  const Outcome all = Predict({"--topologies=ring", "--updates=worker", "--ranks=2", "--worker=2",
                               "--server=1", "--placements=dedicated", "--compressions=none",
                               "--consistencies=bsp", "--bandwidths=1Gbps", "--models=resnet18",
                               "--batch=8", "--compute_scales=1", "--no_such_flag"});
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_THAT(all.errors, ElementsAre(HasSubstr("--no_such_flag")));
  EXPECT_THAT(Predict({"--ranks=0"}).errors, ElementsAre(HasSubstr("--workers: ")));
}

TEST(PredictTest, MistakesAreOneLineAndExitWithTwo) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"--model=alexnet"},
      {"--profile=/nowhere.json"},
      {"--workers=0"},
      {"--probe=/nowhere"},
      {"--cores=2"},
      {"--colour=red"},
      {"--servers=5000"},
      {"--data_parallel=0"},
      {"--data_parallel=2", "--workers=2", "--zero=2"},
      {"--data_parallel=2", "--mesh=data=2", "--model=resnet18"},
      {"--device_bandwidth=8"},
      {"--bandwidth=10"},
      {"here"},
      {"--json=/nowhere/x.json", "--workers=2"},
      {"--workers=2", "--topologies=ps", "--placement=mixed", "--servers=2"}};
  for (const std::vector<std::string>& flags : mistakes) {
    const Outcome outcome = Predict(flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags[0];
    EXPECT_THAT(outcome.errors, SizeIs(1)) << flags[0];
  }
  EXPECT_THAT(Predict({"--model=alexnet"}).errors,
              ElementsAre(HasSubstr("--model: expected one of resnet18, resnet50")));
}

}  // namespace
}  // namespace gradsync
