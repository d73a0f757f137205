// A job that stops and goes on from its checkpoint ends with the bits of one that never stopped, by
// real processes: under every topology, at both update sites, from one to the other, and after a
// SIGKILL. And what cannot be resumed is refused in one line.

#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/local_job.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Flags = std::vector<std::string>;

// How a job is run, which is not what it computes.
struct Way {
  const char* topology;
  const char* link;
  const char* update;
  int servers;

  Flags flags() const {
    Flags flags = {absl::StrCat("--topology=", topology), absl::StrCat("--update=", update)};
    if (topology != std::string("local")) flags.push_back(absl::StrCat("--link=", link));
    return flags;
  }
};

std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.topology << "_" << way.link << "_" << way.update << "_" << way.servers;
}

class CheckpointTest : public ::testing::Test {
 public:
  CheckpointTest() : temporary_(TemporaryFolder::Create("checkpoint-test-").value()) {}

  std::string folder() const { return temporary_.path() + "/job"; }

  static LocalJobOptions Job(const Way& way, int workers, const Flags& flags) {
    LocalJobOptions options;
    options.worker_binary = "worker/worker";
    options.server_binary = "ps_server/ps_server";
    options.workers = workers;
    options.servers = way.servers;
    options.worker_flags = With(With({"--model=mlp", "--batch_size=8", "--timeout=60s",
                                      "--threads=1", "--bucket_bytes=100K"},
                                     way.flags()),
                                flags);
    options.collect_metrics = true;
    return options;
  }

  // What rank 0 of a job that must succeed says.
  static proto::WorkerMetrics Run(const LocalJobOptions& options) {
    proto::WorkerMetrics metrics;
    const auto result = RunLocalJob(options);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return metrics;
    EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
    if (result->worker_metrics.empty()) return metrics;
    EXPECT_TRUE(
        google::protobuf::util::JsonStringToMessage(result->worker_metrics[0], &metrics).ok());
    return metrics;
  }

  Flags Checkpoints(const Flags& more) const { return With({"--checkpoint=" + folder()}, more); }

  const TemporaryFolder temporary_;
};

struct Trip {
  Way first;
  Way second;
  Flags optimizer;
  int workers = 2;
};

// Of seven steps; the bits do not depend on how the job is run.
const proto::WorkerMetrics& Uninterrupted(const Trip& trip, const LocalJobOptions& job) {
  static auto* const known = new std::map<std::string, proto::WorkerMetrics>();
  const std::string key = absl::StrCat(trip.workers, absl::StrJoin(trip.optimizer, " "));
  if (known->count(key) == 0) (*known)[key] = CheckpointTest::Run(job);
  return (*known)[key];
}

class ResumeTest : public CheckpointTest, public ::testing::WithParamInterface<Trip> {};

constexpr Way kLocal = {"local", "", "worker", 0};
constexpr Way kRingGrpc = {"ring", "grpc", "worker", 0};
constexpr Way kRingGrpcOwner = {"ring", "grpc", "owner", 0};
constexpr Way kRingShm = {"ring", "shm", "worker", 0};
constexpr Way kRingShmOwner = {"ring", "shm", "owner", 0};
constexpr Way kPsGrpc = {"ps", "grpc", "worker", 1};
constexpr Way kPsGrpcOwner = {"ps", "grpc", "owner", 2};
constexpr Way kPsInWorkers = {"ps", "grpc", "worker", 0};
constexpr Way kPsInWorkersOwner = {"ps", "grpc", "owner", 0};
constexpr Way kPsShm = {"ps", "shm", "worker", 2};
constexpr Way kPsShmOwner = {"ps", "shm", "owner", 1};

const Flags kMomentum = {"--optimizer=sgd", "--momentum=0.9", "--nesterov"};
const Flags kAdamW = {"--optimizer=adamw", "--lr=0.001"};

TEST_P(ResumeTest, EndsWithTheBitsOfAJobThatNeverStopped) {
  const Trip& trip = GetParam();
  const auto& whole =
      Uninterrupted(trip, Job(trip.first, trip.workers, With(trip.optimizer, {"--steps=7"})));
  const auto half =
      Run(Job(trip.first, trip.workers, With(trip.optimizer, Checkpoints({"--steps=3"}))));
  EXPECT_NE(half.params_sha256(), whole.params_sha256());
  EXPECT_EQ(half.checkpoints(), 1);
  const auto rest = Run(Job(trip.second, trip.workers,
                            With(trip.optimizer, Checkpoints({"--steps=7", "--resume=auto"}))));
  EXPECT_EQ(rest.first_step(), 4);
  EXPECT_EQ(rest.params_sha256(), whole.params_sha256());
  ASSERT_EQ(rest.loss_size(), 4);
  ASSERT_EQ(whole.loss_size(), 7);
  EXPECT_EQ(rest.loss(3), whole.loss(6));
}

INSTANTIATE_TEST_SUITE_P(
    Trips, ResumeTest,
    ::testing::Values(Trip{kLocal, kLocal, kAdamW, 1}, Trip{kRingGrpc, kPsGrpcOwner, kAdamW},
                      Trip{kPsGrpcOwner, kRingGrpcOwner, kMomentum},
                      Trip{kRingShmOwner, kPsShm, kAdamW}, Trip{kPsShmOwner, kRingShm, kMomentum},
                      Trip{kPsGrpc, kPsGrpc, kAdamW}, Trip{kRingGrpcOwner, kPsGrpc, kMomentum},
                      Trip{kPsInWorkersOwner, kPsGrpcOwner, kAdamW},
                      Trip{kPsGrpcOwner, kPsInWorkers, kMomentum}),
    [](const auto& info) {
      return absl::StrReplaceAll(absl::StrCat(::testing::PrintToString(info.param.first), "_to_",
                                              ::testing::PrintToString(info.param.second), "_",
                                              info.param.optimizer == kAdamW ? "adamw" : "sgd"),
                                 {{"__", "_"}, {"-", ""}});
    });

// An epoch of a rank has batches of 5000, 5000 and 2500 samples. The schedule is that of five steps
// in all jobs: the first goes on after its checkpoints.
TEST_F(CheckpointTest, TheSamplesThatAreLeftOfAnEpochComeNext) {
  const Flags flags = {"--batch_size=5000", "--schedule=cosine", "--steps=5"};
  const auto whole = Run(
      Job(kRingShm, 4, With(flags, Checkpoints({"--checkpoint_every=1", "--checkpoint_keep=9"}))));
  for (const int stop : {2, 3}) {
    const std::string from = absl::StrCat("--resume=", folder(), "/step_0000000", stop);
    const auto rest = Run(Job(kRingShm, 4, With(flags, {from})));
    EXPECT_EQ(rest.first_step(), stop + 1);
    EXPECT_EQ(rest.params_sha256(), whole.params_sha256()) << stop;
    EXPECT_NE(rest.params_sha256(), "");
  }
}

// The average is no part of the hash: what is evaluated says whether it went on.
TEST_F(CheckpointTest, TheAverageOfTheWeightsGoesOn) {
  const Flags flags = {"--ema_decay=0.9", "--evaluate", "--batch_size=500"};
  const auto whole = Run(Job(kRingShm, 2, With(flags, {"--steps=5"})));
  Run(Job(kRingShm, 2, With(flags, Checkpoints({"--steps=3"}))));
  const auto rest = Run(Job(kRingShm, 2, With(flags, Checkpoints({"--steps=5", "--resume=auto"}))));
  EXPECT_NE(rest.test_loss(), rest.weights_test_loss());
  EXPECT_EQ(rest.test_loss(), whole.test_loss());
  EXPECT_EQ(rest.params_sha256(), whole.params_sha256());
}

// Which each rank keeps for itself.
TEST_F(CheckpointTest, WhatTopkKeptOfEarlierGradientsGoesOn) {
  const Flags flags = {"--compression=topk:0.1"};
  const auto whole = Run(Job(kPsGrpc, 2, With(flags, {"--steps=7"})));
  Run(Job(kPsGrpc, 2, With(flags, Checkpoints({"--steps=3"}))));
  const auto rest = Run(Job(kPsGrpc, 2, With(flags, Checkpoints({"--resume", "--steps=7"}))));
  EXPECT_EQ(rest.first_step(), 4);
  EXPECT_EQ(rest.params_sha256(), whole.params_sha256());
  EXPECT_NE(rest.params_sha256(), "");
}

TEST_F(CheckpointTest, EpochsAreCountedAndTheBestIsKept) {
  const auto metrics =
      Run(Job(kRingShm, 4,
              Checkpoints({"--batch_size=7000", "--steps=5", "--checkpoint_every=1e",
                           "--checkpoint_best", "--checkpoint_keep=1"})));
  EXPECT_EQ(metrics.checkpoints(), 3);  // of steps 2, 4 and the last
  EXPECT_GT(metrics.checkpoint_seconds(), 0);
  EXPECT_TRUE(std::filesystem::exists(folder() + "/best/model.pt"));
  EXPECT_EQ(std::filesystem::read_symlink(folder() + "/latest"), "step_00000005");
  EXPECT_FALSE(std::filesystem::exists(folder() + "/step_00000002") &&
               std::filesystem::exists(folder() + "/step_00000004"));
}

TEST_F(CheckpointTest, AJobThatHasNoStepsLeftSaysSo) {
  const auto whole = Run(Job(kRingGrpc, 2, Checkpoints({"--steps=2"})));
  std::vector<std::string> lines;
  LocalJobOptions again = Job(kPsGrpcOwner, 2, Checkpoints({"--steps=2", "--resume=auto"}));
  again.on_line = [&](absl::string_view process, absl::string_view line, bool) {
    if (process == "worker 0") lines.push_back(std::string(line));
  };
  EXPECT_EQ(Run(again).params_sha256(), whole.params_sha256());
  EXPECT_THAT(lines, Contains(HasSubstr("no steps left, params_sha256 " + whole.params_sha256())));
}

TEST_F(CheckpointTest, ADamagedCheckpointIsNamedAndTheOneBeforeIsTaken) {
  const auto whole = Run(Job(kLocal, 1, {"--steps=6"}));
  Run(Job(kLocal, 1, Checkpoints({"--steps=4", "--checkpoint_every=2"})));
  std::filesystem::resize_file(folder() + "/step_00000004/state.safetensors", 100);
  std::vector<std::string> lines;
  LocalJobOptions rest = Job(kLocal, 1, Checkpoints({"--steps=6", "--resume=auto"}));
  rest.on_line = [&](absl::string_view, absl::string_view line, bool) {
    lines.push_back(std::string(line));
  };
  const auto metrics = Run(rest);
  EXPECT_EQ(metrics.first_step(), 3);
  EXPECT_EQ(metrics.params_sha256(), whole.params_sha256());
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("damaged"), HasSubstr("step_00000004"))));
}

TEST_F(CheckpointTest, WhatIsNotTheSameJobIsRefusedInOneLine) {
  const Flags job = {"--model=mlp", "--batch_size=8", "--steps=2"};
  WorkerProcesses first({With(job, Checkpoints({}))});
  ASSERT_EQ(first[0].Finish().code, 0);
  const std::vector<std::pair<Flags, std::string>> cases = {
      {{"--resume=auto", "--seed=1"}, R"(--seed: expected "0" as in)"},
      {{"--resume=auto", "--batch_size=9"}, R"(--batch_size: expected "8")"},
      {{"--resume=auto", "--model=resnet18"}, R"(--model: expected "mlp")"},
      {{"--resume=auto", "--optimizer=adam"}, R"(--optimizer: expected "sgd")"},
      {{"--resume=auto", "--lr=0.5"}, "--lr: expected"},
      {{"--resume=auto", "--chunk_bytes=96KiB"}, "--chunk_bytes: expected"},
      {{"--resume=auto", "--steps=1"}, "--steps: expected at least 2"},
      {{}, "--checkpoint: expected a folder without checkpoints, or --resume=auto"},
      {{"--resume=" + folder() + "/no"}, "--resume: expected a folder with a whole checkpoint"},
      {{"--checkpoint_every=2x"}, "--checkpoint_every: expected a number of steps"},
      {{"--checkpoint_every=0"}, "--checkpoint_every: expected a number of steps"},
      {{"--checkpoint_keep=0"}, "--checkpoint_keep: expected at least 1"},
      {{"--checkpoint=", "--resume=auto"}, "--checkpoint: expected a folder"},
      {{"--init_from=" + folder() + "/no.pt", "--checkpoint="}, "--init_from: cannot read"},
      {{"--init_from=" + folder(), "--checkpoint="}, folder() + "/latest/model.pt"},
  };
  for (const auto& [flags, expected] : cases) {
    WorkerProcesses worker({With(With(job, Checkpoints({})), flags)});
    EXPECT_EQ(worker[0].Finish().code, 2) << expected;
    EXPECT_THAT(worker[0].err(), ElementsAre(HasSubstr(expected)));
  }
  WorkerProcesses two({With(job, Checkpoints({"--resume=auto", "--topology=ring"}))}, 2);
  EXPECT_EQ(two[0].Finish().code, 2);
  EXPECT_THAT(two[0].err(), ElementsAre(HasSubstr("--world_size: expected 1 as in")));
  WorkerProcesses local({With(job, Checkpoints({"--topology=local"}))}, 2);
  EXPECT_EQ(local[0].Finish().code, 2);
  EXPECT_THAT(local[0].err(), ElementsAre(HasSubstr("--checkpoint: expected none with")));
}

TEST_F(CheckpointTest, WeightsOfAnotherModelAreRefusedByName) {
  const Flags job = {"--model=resnet18", "--stem=cifar", "--batch_size=2", "--steps=1"};
  WorkerProcesses first({With(job, Checkpoints({}))});
  ASSERT_EQ(first[0].Finish().code, 0);
  for (const char* file : {"model.pt", "model.safetensors"}) {
    const std::string from = absl::StrCat("--init_from=", folder(), "/latest/", file);
    WorkerProcesses same({With(job, {from})});
    EXPECT_EQ(same[0].Finish().code, 0);
    WorkerProcesses wider({With(job, {from, "--stem=imagenet"})});
    EXPECT_EQ(wider[0].Finish().code, 2);
    EXPECT_THAT(wider[0].err(),
                ElementsAre(AllOf(HasSubstr("1 of other sizes (conv1.weight"), HasSubstr(file))));
  }
}

// With launch, whose worker 1 is killed after a checkpoint.
class RestartTest : public CheckpointTest, public ::testing::WithParamInterface<Way> {};

TEST_P(RestartTest, AKilledWorkerCostsOnlyTheStepsSinceTheCheckpoint) {
  const Flags job =
      With({"--model=mlp", "--batch_size=8", "--steps=400", "--threads=1"}, GetParam().flags());
  const auto launch = [&](const Flags& flags) {
    Flags argv = {"tools/launch", "--workers=2", "--max_restarts=1",
                  absl::StrCat("--servers=", GetParam().servers), "--"};
    return std::make_unique<TestProgram>(With(With(argv, job), flags));
  };
  const auto hash = [](const TestProgram& program) {
    for (const std::string& line : program.out()) {
      const size_t at = line.find("params_sha256 ");
      if (at != std::string::npos) return line.substr(at);
    }
    return std::string("none");
  };
  const auto whole = launch({});
  ASSERT_EQ(whole->Finish().code, 0);

  const auto killed = launch(Checkpoints({"--checkpoint_every=50", "--resume=auto"}));
  const std::string started = killed->AwaitLine("[worker 1] started, pid ");
  int pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(started.substr(started.rfind(' ') + 1), &pid)) << started;
  killed->AwaitLine("checkpoint of step 50 ");
  kill(pid, SIGKILL);
  EXPECT_EQ(killed->Finish().code, 0);
  EXPECT_THAT(killed->err(), Contains(HasSubstr("launch: restart 1 of 1")));
  EXPECT_THAT(killed->out(), Contains(HasSubstr("resumed from ")));
  EXPECT_EQ(hash(*killed), hash(*whole));
  EXPECT_NE(hash(*killed), "none");
}

INSTANTIATE_TEST_SUITE_P(Ways, RestartTest, ::testing::Values(kRingGrpc, kPsGrpcOwner),
                         [](const auto& info) { return ::testing::PrintToString(info.param); });

}  // namespace
}  // namespace gradsync
