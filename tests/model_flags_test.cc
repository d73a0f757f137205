// What a user sees of the models: jobs of workers as processes, with flags.

#include <cstdint>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string>& TinyGpt() {
  static const auto* const flags = new std::vector<std::string>{
      "--model=gpt", "--gpt_width=32", "--gpt_layers=2", "--gpt_heads=2", "--gpt_context=64"};
  return *flags;
}

// The metrics of rank 0 of a job of two workers that must succeed, and what it printed.
struct Outcome {
  proto::WorkerMetrics metrics;
  std::string out;
};

Outcome Train(const std::string& topology, const std::vector<std::string>& flags) {
  LocalJobOptions options;
  options.worker_binary = "worker/worker";
  options.server_binary = "ps_server/ps_server";
  options.workers = 2;
  options.servers = topology == "ps" ? 1 : 0;
  options.worker_flags =
      With({absl::StrCat("--topology=", topology), "--batch_size=4", "--steps=2"}, flags);
  options.collect_metrics = true;
  Outcome outcome;
  options.on_line = [&](absl::string_view process, absl::string_view line, bool is_stderr) {
    if (process == "worker 0" && !is_stderr) absl::StrAppend(&outcome.out, line, "\n");
  };
  const auto result = RunLocalJob(options);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return outcome;
  EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
  if (result->worker_metrics.empty()) return outcome;
  EXPECT_TRUE(
      google::protobuf::util::JsonStringToMessage(result->worker_metrics[0], &outcome.metrics)
          .ok());
  return outcome;
}

struct Case {
  std::string name;
  std::vector<std::string> flags;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class ActivationCheckpointingTest : public ::testing::TestWithParam<Case> {};

// With dropout where the model has it, and with BatchNorm.
TEST_P(ActivationCheckpointingTest, LeavesTheBitsAndTakesLessMemory) {
  const std::vector<std::string>& flags = GetParam().flags;
  const std::vector<std::string> recomputed = With(flags, {"--activation_checkpointing"});
  const Outcome plain = Train("ps", flags);
  const Outcome ps = Train("ps", recomputed);
  const Outcome ring = Train("ring", recomputed);
  ASSERT_FALSE(plain.metrics.params_sha256().empty());
  EXPECT_EQ(ps.metrics.params_sha256(), plain.metrics.params_sha256());
  EXPECT_EQ(ring.metrics.params_sha256(), plain.metrics.params_sha256());
  EXPECT_EQ(ps.metrics.loss(1), plain.metrics.loss(1));

  EXPECT_FALSE(plain.metrics.activation_checkpointing());
  EXPECT_TRUE(ps.metrics.activation_checkpointing());
  EXPECT_GT(ps.metrics.peak_tensor_bytes(), 0);
  EXPECT_LT(ps.metrics.peak_tensor_bytes(), 0.8 * plain.metrics.peak_tensor_bytes());
  EXPECT_THAT(ps.out, AllOf(HasSubstr("tensors beside the buckets at most "),
                            HasSubstr("MB in a step, median step"),
                            HasSubstr("with activation checkpointing")));
}

INSTANTIATE_TEST_SUITE_P(Models, ActivationCheckpointingTest,
                         ::testing::Values(Case{"resnet18", {"--model=resnet18", "--stem=cifar"}},
                                           Case{"vit", {"--model=vit_s_16", "--data=synthetic:64"}},
                                           Case{"gpt", With(TinyGpt(),
                                                            {"--batch_size=16", "--dropout=0.3"})}),
                         [](const auto& info) { return info.param.name; });

std::string TextFile() {
  const std::string path = absl::StrCat(testing::TempDir(), "/words.txt");
  std::ofstream file(path);
  for (int i = 0; i < 3000; ++i) file << "the cat sat on the mat; ";
  return path;
}

TEST(GptTest, LearnsTextAndIsScoredAtAllPositions) {
  const Outcome outcome =
      Train("ring", With(TinyGpt(), {absl::StrCat("--data=text:", TextFile()), "--steps=40",
                                     "--optimizer=adam", "--lr=0.01", "--weight_decay=0",
                                     "--dropout=0", "--evaluate", "--evaluate_every=20"}));
  EXPECT_NEAR(outcome.metrics.loss(0), 5.6, 0.3);  // ln 256: a guess
  EXPECT_LT(outcome.metrics.mean_final_loss(), 0.5);
  EXPECT_GT(outcome.metrics.test_accuracy(), 0.9);
  EXPECT_LE(outcome.metrics.test_accuracy(), 1);
  ASSERT_EQ(outcome.metrics.accuracy_curve_size(), 2);
  EXPECT_LT(outcome.metrics.accuracy_curve(0).accuracy(),
            outcome.metrics.accuracy_curve(1).accuracy());
}

TEST(GptTest, TrainsOnSyntheticTokensWithoutAFile) {
  const Outcome outcome = Train("ps", TinyGpt());
  EXPECT_NEAR(outcome.metrics.loss(0), 5.6, 0.3);
}

// One line on stderr, before any peer is looked for.
std::string ErrorOf(const std::vector<std::string>& flags) {
  const std::vector<std::string> all = With({"--steps=1", "--batch_size=2"}, flags);
  WorkerProcesses workers({all});
  EXPECT_EQ(workers[0].Finish().code, 2) << absl::StrJoin(flags, " ");
  EXPECT_EQ(workers[0].err().size(), 1u);
  return absl::StrJoin(workers[0].err(), "\n");
}

TEST(ModelFlagsTest, ModelsAndDataThatDoNotFitAreNamedWithBothFlags) {
  EXPECT_THAT(ErrorOf({"--model=gpt", "--data=cifar10:/x"}),
              HasSubstr("--data: expected text:FILE or synthetic with --model=gpt, found "
                        "\"cifar10:/x\""));
  EXPECT_THAT(ErrorOf({"--model=resnet18", "--data=text:/x"}),
              HasSubstr("--data: expected images with --model=resnet18 (text is for --model=gpt), "
                        "found \"text:/x\""));
  EXPECT_THAT(ErrorOf(With(TinyGpt(), {"--data=text:" + TextFile(), "--gpt_context=8000"})),
              AllOf(HasSubstr("--data: expected text of at least 80010 bytes with "
                              "--gpt_context=8000"),
                    HasSubstr("of 72000 bytes")));
  EXPECT_THAT(ErrorOf({"--model=vit_s_16", "--data=synthetic:40"}),
              AllOf(HasSubstr("--model: expected one for --data with images of 40x40"),
                    HasSubstr("found \"vit_s_16\"")));
  EXPECT_THAT(ErrorOf({"--model=resnet20"}),
              HasSubstr("unknown model 'resnet20': expected resnet18, resnet34, "));
  EXPECT_THAT(ErrorOf(With(TinyGpt(), {"--dropout=1.5"})),
              HasSubstr("--dropout: expected at least 0 and less than 1, found \"1.5\""));
}

TEST(ModelFlagsTest, DescribeModelPrintsTheBlocksAndEnds) {
  const std::vector<std::string> flags = {"--model=resnet18", "--describe_model"};
  WorkerProcesses workers({flags});
  EXPECT_EQ(workers[0].Finish().code, 0);
  EXPECT_THAT(workers[0].err(), ElementsAre());
  const std::vector<std::string>& out = workers[0].out();
  ASSERT_EQ(out.size(), 12u);
  EXPECT_THAT(out[1], AllOf(HasSubstr("0  stem"), HasSubstr("9,536"), HasSubstr("1x64x8x8")));
  EXPECT_THAT(out[9], AllOf(HasSubstr("8  layer4.1"), HasSubstr("1x512x1x1")));
  EXPECT_EQ(out[11], "resnet18: 10 blocks, 11,181,642 parameters, 44.7 MB of gradients");
}

TEST(ModelFlagsTest, DescribeModelShowsTokens) {
  const std::vector<std::string> flags = With(TinyGpt(), {"--describe_model"});
  WorkerProcesses workers({flags});
  EXPECT_EQ(workers[0].Finish().code, 0);
  const std::vector<std::string>& out = workers[0].out();
  ASSERT_EQ(out.size(), 6u);
  EXPECT_THAT(out[0], HasSubstr("an input of 1x64"));
  EXPECT_THAT(out[4], AllOf(HasSubstr("3  head"), HasSubstr("1x64x256")));
}

}  // namespace
}  // namespace gradsync
