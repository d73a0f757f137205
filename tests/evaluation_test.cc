// What a job says of its model on the test split, by real processes: in the course of training, of
// the weights' average, and of weights alone.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
using ::testing::Not;

using Flags = std::vector<std::string>;

// Small enough to be evaluated in no time.
const Flags kGpt = {"--model=gpt",     "--gpt_width=8",    "--gpt_layers=2", "--gpt_heads=2",
                    "--gpt_context=8", "--batch_size=256", "--dropout=0.1",  "--optimizer=adamw"};

class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() : temporary_(TemporaryFolder::Create("evaluation-test-").value()) {}

  std::string folder() const { return temporary_.path() + "/job"; }

  // Rank 0's record of a job that must succeed, whose lines are in out_ then.
  proto::WorkerMetrics Run(int workers, int servers, const Flags& flags) {
    LocalJobOptions job = SmallJob(workers, servers, With({"--threads=1"}, flags));
    out_.clear();
    job.on_line = [this](absl::string_view process, absl::string_view line, bool) {
      if (process == "worker 0") out_.push_back(std::string(line));
    };
    const std::vector<proto::WorkerMetrics> all = MetricsOf(job);
    EXPECT_EQ(all.size(), static_cast<size_t>(workers));
    return all.empty() ? proto::WorkerMetrics() : all[0];
  }

  proto::WorkerMetrics Evaluate(const Flags& flags, const std::string& file) {
    return Run(1, 0,
               With(flags, {"--evaluate_only", absl::StrCat("--init_from=", folder(), file)}));
  }

  proto::WorkerMetrics Read(const std::string& file) const {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    proto::WorkerMetrics metrics;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text.str(), &metrics).ok()) << file;
    return metrics;
  }

  const TemporaryFolder temporary_;
  std::vector<std::string> out_;
};

// The average's accuracy was reported, while DIR/best was chosen by the weights', and no file that
// users could load had the average. With bf16 the weights were evaluated in the average's place,
// since their rounded copies stayed.
TEST_F(EvaluationTest, WhatIsReportedOfTheAverageIsWhatItsFileCanDo) {
  const std::vector<std::pair<Flags, int>> jobs = {
      {{"--batch_size=64", "--lr=0.05", "--topology=ring"}, 2},
      {{"--batch_size=64", "--lr=0.05", "--precision=bf16"}, 1},
      {With(kGpt, {"--lr=0.01", "--topology=ps"}), 2}};
  for (const auto& [job, workers] : jobs) {
    SCOPED_TRACE(::testing::PrintToString(job));
    std::filesystem::remove_all(folder());
    const auto trained =
        Run(workers, 0,
            With(job, {"--steps=60", "--ema_decay=0.98", "--evaluate", "--checkpoint_best",
                       "--checkpoint_every=20", absl::StrCat("--checkpoint=", folder())}));
    EXPECT_THAT(out_, Contains(AllOf(HasSubstr("checkpoint of step 20"), HasSubstr("(model_ema; "),
                                     HasSubstr(", best"))));
    EXPECT_NE(trained.test_loss(), trained.weights_test_loss());
    const Flags alone = With(job, {"--topology=local"});
    const auto average = Evaluate(alone, "/latest/model_ema.pt");
    EXPECT_EQ(average.test_accuracy(), trained.test_accuracy());
    EXPECT_NEAR(average.test_loss(), trained.test_loss(), 1e-6);
    const auto weights = Evaluate(alone, "/latest/model.pt");
    EXPECT_EQ(weights.test_accuracy(), trained.weights_test_accuracy());
    EXPECT_NEAR(weights.test_loss(), trained.weights_test_loss(), 1e-6);
    // The best has the largest of the accuracies that the checkpoints reported.
    const auto best = Evaluate(alone, "/best/model_ema.safetensors");
    EXPECT_GE(best.test_accuracy(), average.test_accuracy());
  }
}

TEST_F(EvaluationTest, PointsAreThoseOfShorterJobsAndChangeNoBitOfTraining) {
  const std::vector<std::pair<Flags, int>> jobs = {
      {{"--topology=ring", "--batch_size=100", "--loader_threads=3"}, 2},
      {{"--batch_size=100", "--ema_decay=0.9"}, 1},
      {{"--topology=ring", "--batch_size=100", "--zero=3"}, 2},
      {{"--mesh=pipeline=2", "--batch_size=100", "--micro_batches=2"}, 2},
      {With(kGpt, {"--mesh=tensor=2"}), 2},
      {With(kGpt, {"--topology=ps", "--update=owner"}), 2}};
  for (const auto& [job, workers] : jobs) {
    SCOPED_TRACE(::testing::PrintToString(job));
    const Flags long_job = With(job, {"--steps=6", "--evaluate"});
    const auto plain = Run(workers, 0, long_job);
    const auto points = Run(workers, 0, With(long_job, {"--evaluate_every=3"}));
    EXPECT_EQ(points.params_sha256(), plain.params_sha256());
    EXPECT_EQ(points.test_loss(), plain.test_loss());
    ASSERT_EQ(points.accuracy_curve_size(), 2);
    EXPECT_EQ(points.accuracy_curve(1).loss(), plain.test_loss());
    const auto shorter = Run(workers, 0, With(long_job, {"--steps=3"}));
    EXPECT_EQ(points.accuracy_curve(0).step(), 3);
    EXPECT_EQ(points.accuracy_curve(0).loss(), shorter.test_loss());
    EXPECT_EQ(points.accuracy_curve(0).accuracy(), shorter.test_accuracy());
    EXPECT_EQ(points.accuracy_curve(0).weights_accuracy(), shorter.weights_test_accuracy());
    EXPECT_EQ(points.accuracy_curve(0).seconds(), points.step_end_seconds(2));
  }
}

// All points were lost when a job was told to end, and none was ever said before the last step.
TEST_F(EvaluationTest, PointsAreSaidAtOnceAndOutliveASignal) {
  const auto job = [&](int rank) -> Flags {
    return {
        "--model=mlp",     "--batch_size=8",
        "--steps=1000000", "--evaluate_every=5",
        "--topology=ring", "--threads=1",
        "--timeout=60s",   absl::StrCat("--metrics_json=", temporary_.path(), "/metrics", rank)};
  };
  WorkerProcesses workers({job(0), job(1)});
  EXPECT_NE(workers[0].AwaitLine("step 5 test loss "), "");
  EXPECT_NE(workers[0].AwaitLine("step 10 test loss "), "");
  workers[1].Kill(SIGTERM);
  EXPECT_EQ(workers[1].Finish().code, 128 + SIGTERM);
  EXPECT_EQ(workers[0].Finish().code, 128 + SIGTERM);
  const proto::WorkerMetrics metrics = Read(temporary_.path() + "/metrics0");
  ASSERT_GE(metrics.accuracy_curve_size(), 2);
  EXPECT_EQ(metrics.accuracy_curve(1).step(), 10);
  EXPECT_GT(metrics.accuracy_curve(1).accuracy(), 0);
}

// Others do not wait for an evaluation there, so rank 0's models are kept; those of a job that ends
// early too.
TEST_F(EvaluationTest, WithoutOnePaceWhatWasKeptIsEvaluatedWhenTheJobIsToldToEnd) {
  const Flags asp = {"--model=mlp",    "--batch_size=8", "--evaluate_every=5", "--topology=ps",
                     "--update=owner", "--threads=1",    "--consistency=asp",  "--timeout=60s"};
  const Flags first = With(asp, {"--steps=10000", "--log_every=1",
                                 absl::StrCat("--metrics_json=", temporary_.path(), "/metrics")});
  WorkerProcesses workers({first, With(asp, {"--steps=10000"})});
  EXPECT_NE(workers[0].AwaitLine("step 11/"), "");
  workers[0].Kill(SIGTERM);
  EXPECT_EQ(workers[0].Finish().code, 128 + SIGTERM);
  EXPECT_THAT(workers[0].out(), Contains(HasSubstr("step 10 test loss ")));
  EXPECT_GE(Read(temporary_.path() + "/metrics").accuracy_curve_size(), 2);
  // Bounded: 5,000 kept models of 0.4 MB are 2 GB.
  WorkerProcesses greedy({With(asp, {"--steps=50000", "--evaluate_every=10"})});
  EXPECT_EQ(greedy[0].Finish().code, 2);
  EXPECT_THAT(greedy[0].err(), ElementsAre(AllOf(HasSubstr("--evaluate_every: expected at least"),
                                                 HasSubstr("MiB of them, found \"10\""))));
}

TEST_F(EvaluationTest, WeightsAloneAreEvaluatedInAnyWayWithoutAStep) {
  const Flags job = {"--batch_size=100", "--lr=0.05"};
  const auto trained = Run(2, 0,
                           With(job, {"--topology=ring", "--steps=8", "--evaluate",
                                      absl::StrCat("--checkpoint=", folder())}));
  const std::vector<std::pair<Flags, int>> ways = {
      {{}, 1},
      {{"--loader_threads=4", "--batch_size=37"}, 1},
      {{"--topology=ring"}, 3},
      {{"--topology=ring", "--zero=3"}, 2},
      {{"--topology=ps", "--update=owner"}, 2},
      {{"--optimizer=adam", "--lr=7", "--lr_warmup=1000"}, 1}};
  for (const auto& [way, workers] : ways) {
    SCOPED_TRACE(::testing::PrintToString(way));
    for (const std::string& from : {absl::StrCat("--init_from=", folder(), "/latest/model.pt"),
                                    absl::StrCat("--resume=", folder())}) {
      const auto alone =
          Run(workers, 0, With(With(job, way), {from, "--test-only", "--evaluate_every=1"}));
      EXPECT_EQ(alone.test_accuracy(), trained.test_accuracy());
      EXPECT_NEAR(alone.test_loss(), trained.test_loss(), 1e-5);
      EXPECT_EQ(alone.test_samples(), 10000);
      EXPECT_EQ(alone.params_sha256(), trained.params_sha256());
      EXPECT_EQ(alone.loss_size(), 0);
      EXPECT_THAT(out_, Contains(HasSubstr("weights from ")));
      EXPECT_THAT(out_, Contains(HasSubstr("evaluated on 10000 samples, no step trained")));
      EXPECT_THAT(out_, Not(Contains(HasSubstr("step 1"))));
    }
  }
  // Nothing was written beside the checkpoint.
  EXPECT_EQ(std::filesystem::read_symlink(folder() + "/latest"), "step_00000008");
}

TEST_F(EvaluationTest, ACheckpointWithAnAverageIsJudgedByIt) {
  const auto trained = Run(1, 0,
                           {"--steps=8", "--lr=0.05", "--ema_decay=0.9", "--evaluate",
                            "--batch_size=100", absl::StrCat("--checkpoint=", folder())});
  const auto alone = Run(2, 0,
                         {"--topology=ring", "--batch_size=100", "--evaluate_only",
                          absl::StrCat("--resume=", folder())});
  EXPECT_EQ(alone.test_accuracy(), trained.test_accuracy());
  EXPECT_NEAR(alone.test_loss(), trained.test_loss(), 1e-5);
  EXPECT_NEAR(alone.weights_test_loss(), trained.weights_test_loss(), 1e-5);
  EXPECT_NE(alone.test_loss(), alone.weights_test_loss());
}

// --trace was refused with steps of a job of 0, while --tensorboard and --checkpoint were passed over.
TEST_F(EvaluationTest, WhatToWriteOfTrainingMayStayOnTheCommandLineAndIsNotWritten) {
  const Flags job = {"--batch_size=100", "--steps=20"};
  Run(1, 0, With(job, {absl::StrCat("--checkpoint=", folder())}));
  const std::string outputs = temporary_.path() + "/outputs";
  std::filesystem::create_directory(outputs);
  for (const char* trace : {"t.pftrace", "t{rank}.json"}) {
    const auto alone = Run(1, 0,
                           With(job, {absl::StrCat("--resume=", folder()), "--evaluate_only",
                                      absl::StrCat("--trace=", outputs, "/", trace),
                                      absl::StrCat("--tensorboard=", outputs, "/board"),
                                      absl::StrCat("--checkpoint=", outputs, "/checkpoints"),
                                      absl::StrCat("--write_config=", outputs, "/job.yaml")}));
    EXPECT_EQ(alone.test_samples(), 10000);
    EXPECT_TRUE(std::filesystem::is_empty(outputs));
  }
}

// It ended well, with an accuracy for scripts to read.
TEST_F(EvaluationTest, ALossThatIsNoNumberIsNoResult) {
  Run(1, 0, {"--steps=1", "--lr=1e36", absl::StrCat("--checkpoint=", folder())});
  const Flags flags = {"--model=mlp", "--evaluate_only", absl::StrCat("--resume=", folder())};
  WorkerProcesses worker({flags});
  EXPECT_EQ(worker[0].Finish().code, 1);
  EXPECT_THAT(worker[0].err(),
              ElementsAre(HasSubstr("--evaluate_only: expected a finite test loss (or "
                                    "--allow_nonfinite), found ")));
  WorkerProcesses allowed({With(flags, {"--allow_nonfinite"})});
  EXPECT_EQ(allowed[0].Finish().code, 0);
}

TEST_F(EvaluationTest, AnEvaluationOfNothingIsRefused) {
  const std::string file = temporary_.path() + "/checkpoint.pth";
  std::ofstream(file) << "weights";
  const std::vector<std::pair<Flags, std::string>> cases = {
      {{}, "--evaluate_only: expected --init_from=FILE or --resume"},
      {{"--checkpoint=" + folder()}, "--evaluate_only: expected --init_from=FILE or --resume"},
      {{"--checkpoint=" + folder(), "--resume"}, "--checkpoint: expected a folder with a whole"},
      {{"--resume=" + folder()}, "--resume: expected a folder with a whole checkpoint"},
      {{"--resume=" + file}, "--resume: expected a checkpoint's folder"},
      {{"--init_from=" + folder()}, "--init_from: "}};
  for (const auto& [flags, expected] : cases) {
    WorkerProcesses worker({With({"--model=mlp", "--evaluate_only"}, flags)});
    EXPECT_EQ(worker[0].Finish().code, 2) << expected;
    EXPECT_THAT(worker[0].err(), ElementsAre(HasSubstr(expected)));
    EXPECT_THAT(worker[0].out(), Not(Contains(HasSubstr("step 1"))));
  }
}

}  // namespace
}  // namespace gradsync
