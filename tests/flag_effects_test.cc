// Flags that had no effect were taken in silence: --dropout with a ResNet, --nesterov with Adam, an
// explicit --update=worker with --zero=1. Every row of //worker's table of such flags, by real
// processes.

#include "core/program/flag_effects.h"

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"
#include "worker/effective_flags.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Flags = std::vector<std::string>;

constexpr int kRefused = 2;

// A flag with a value, beside which it has no effect, and beside which it has.
struct Sample {
  const char* flag;
  const char* value;
  Flags in_vain;
  Flags fitting;
};

// In the order of the table's rows.
const std::vector<Sample>& Samples() {
  const Flags gpt = {"--model=gpt"};
  const Flags mlp = {"--model=mlp"};
  const Flags adam = {"--optimizer=adam"};
  const Flags folder = {"--data=imagefolder:somewhere"};
  const Flags cuda = {"--device=cuda"};
  const Flags traced = {"--trace=t.pftrace", "--steps=20"};
  static const auto* const samples = new std::vector<Sample>{
      {"update", "worker", {"--zero=1"}, {"--zero=0"}},
      {"update", "worker", {"--offload=optimizer", "--device=cuda"}, {"--device=cuda"}},
      {"connections", "3", {"--topology=ring", "--link=shm"}, {"--topology=ring"}},
      {"connections", "3", {}, {"--topology=ps", "--link=grpc"}},
      {"server_weights", "equal", {"--topology=ring"}, {"--topology=ps"}},
      {"stem", "cifar", {"--model=vgg16"}, {"--model=resnet34"}},
      {"gpt_width", "48", mlp, gpt},
      {"gpt_layers", "6", mlp, gpt},
      {"gpt_heads", "2", {"--model=vit_s_16"}, gpt},
      {"gpt_context", "8", {}, gpt},
      {"dropout", "0.1", {"--model=resnext50_32x4d"}, {"--model=vgg16_bn"}},
      {"image_size", "32", mlp, folder},
      {"crop", "padded", {"--data=synthetic:64"}, folder},
      {"scaled_decoding", "false", {"--data=cifar10:somewhere"}, folder},
      {"skip_damaged", "3", {"--data=cifar10:somewhere"}, folder},
      {"epochs", "5", {"--steps=10"}, {}},
      {"momentum", "0.8", {"--optimizer=adamw"}, {"--optimizer=sgd"}},
      {"nesterov", "true", adam, {}},
      {"no_weight_decay", "bias", adam, {"--optimizer=adam", "--weight_decay=0.1"}},
      {"ema_decay", "0.9", {}, {"--evaluate_every=5"}},
      {"lr_reference_batch", "256", {}, {"--lr_scaling=sqrt"}},
      {"lr_milestones", "5", {"--schedule=cosine"}, {"--schedule=step"}},
      {"lr_gamma", "0.1", {"--schedule=poly"}, {"--schedule=step", "--lr_milestones=5"}},
      {"lr_final", "0.1", {"--schedule=poly"}, {"--schedule=cosine"}},
      {"lr_power", "2", {"--schedule=cosine"}, {"--schedule=poly"}},
      {"lr_warmup_start", "0.1", {"--lr_warmup=0"}, {"--lr_warmup_steps=5"}},
      {"checkpoint_keep", "3", {}, {"--checkpoint=somewhere"}},
      {"init_from", "w.pt", {"--resume=somewhere"}, {"--resume=auto", "--checkpoint=somewhere"}},
      {"tf32", "true", {}, cuda},
      {"cuda_graph", "true", {}, {"--device=auto"}},
      {"cudnn_benchmark", "true", mlp, {"--device=cuda:1"}},
      {"fused_norm", "true", {"--channels_last"}, {"--device=cuda", "--channels_last"}},
      {"fused_norm", "true", cuda, {"--device=cuda", "--channels_last"}},
      {"channels_last", "true", gpt, {"--model=vit_s_16"}},
      {"weight_copies", "true", {}, {"--precision=bf16"}},
      {"trace_steps", "5-6", {"--steps=20"}, traced},
      {"trace_bandwidth", "400mbit", {"--trace=t{rank}.json", "--steps=20"}, traced},
      {"trace_placement", "dedicated", traced, With(traced, {"--trace_bandwidth=1gbit"})},
      {"metrics_host", "0.0.0.0", {}, {"--metrics_port=0"}},
      {"metrics_port_file", "somewhere", {}, {"--metrics_port=0"}},
  };
  return *samples;
}

// Flags only, since what they name is looked at later.
struct Answer {
  int code = 0;
  Flags err;
};

Answer Ask(const Flags& flags) {
  TestProgram worker(With({"worker/worker", "--describe_model"}, flags));
  Answer answer;
  answer.code = worker.Finish().code;
  answer.err = worker.err();
  return answer;
}

class RowTest : public ::testing::TestWithParam<size_t> {};

TEST_P(RowTest, IsRefusedWhereItHasNoEffectAndTakenWhereItHas) {
  ASSERT_LT(GetParam(), Samples().size()) << "a row of the table has no sample here";
  const Sample& sample = Samples()[GetParam()];
  ASSERT_EQ(WorkerFlagEffects()[GetParam()].flag, sample.flag);
  const std::string given = absl::StrCat("--", sample.flag, "=", sample.value);
  const Answer refused = Ask(With(sample.in_vain, {given}));
  EXPECT_EQ(refused.code, kRefused);
  EXPECT_THAT(refused.err,
              ElementsAre(AllOf(HasSubstr(absl::StrCat("--", sample.flag, ": expected to be left")),
                                HasSubstr(absl::StrCat("found \"", sample.value, "\"")))));
  // It is the flag and not the rest that is refused, and not everywhere.
  EXPECT_THAT(Ask(sample.in_vain).err, Not(Contains(HasSubstr(sample.flag))));
  EXPECT_THAT(Ask(With(sample.fitting, {given})).err, Not(Contains(HasSubstr("to be left out"))));
}

std::string NameOf(const ::testing::TestParamInfo<size_t>& info) {
  return absl::StrCat(WorkerFlagEffects()[info.param].flag, "_", info.param);
}

INSTANTIATE_TEST_SUITE_P(Rows, RowTest, ::testing::Range(size_t{0}, WorkerFlagEffects().size()),
                         NameOf);

TEST(WorkerFlagEffectsTest, ASampleStandsForEachRow) {
  EXPECT_EQ(Samples().size(), WorkerFlagEffects().size());
}

TEST(WorkerFlagEffectsTest, ValuesThatPromiseNothingAreTaken) {
  const Answer answer = Ask({"--model=mlp", "--optimizer=adam", "--nesterov=false", "--dropout=0",
                             "--update=owner", "--zero=1", "--cuda_graph=false", "--tf32=false"});
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.err, IsEmpty());
}

// A file serves several jobs, so that it may say more than one of them needs.
TEST(WorkerFlagEffectsTest, AJobFileIsHeldToItsOwnWordsAndMayBeOverruled) {
  const TemporaryFolder folder = TemporaryFolder::Create("flag-effects-").value();
  const std::string file = folder.path() + "/job.yaml";
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("model: mlp\noptimizer: adam\nnesterov: true\n");
  const Answer own = Ask({"--config=" + file});
  EXPECT_EQ(own.code, kRefused);
  EXPECT_THAT(own.err, ElementsAre(AllOf(StartsWith("worker: "), HasSubstr(file + ": --nesterov"),
                                         HasSubstr("--optimizer=adam"))));
  write("model: mlp\nnesterov: true\nepochs: 5\nmomentum: 0.9\n");
  const Answer overruled = Ask({"--config=" + file, "--optimizer=adam", "--steps=3"});
  EXPECT_EQ(overruled.code, 0);
  EXPECT_THAT(overruled.err, ElementsAre(HasSubstr("epochs: 5 of " + file + " has no effect"),
                                         HasSubstr("nesterov: true of " + file)));
}

TEST(WorkerFlagEffectsTest, AWrittenJobFileLeavesOutWhatHasNoEffectAndIsTakenAgain) {
  const TemporaryFolder folder = TemporaryFolder::Create("flag-effects-").value();
  const std::string file = folder.path() + "/job.yaml";
  const Flags job = {"worker/worker", "--model=mlp", "--optimizer=adamw", "--steps=2", "--zero=1"};
  TestProgram first(With(job, {"--write_config=" + file, "--print_config"}));
  EXPECT_EQ(first.Finish().code, 0);
  EXPECT_THAT(first.out(), AllOf(Contains("momentum: 0.9  # default, without effect"),
                                 Contains("weight_decay: 0.01  # default"),
                                 Contains("update: \"owner\"  # default, without effect")));
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, AllOf(HasSubstr("\nweight_decay: 0.01\n"), Not(HasSubstr("momentum")),
                          Not(HasSubstr("gpt_width"))));
  TestProgram again({"worker/worker", "--config=" + file});
  EXPECT_EQ(again.Finish().code, 0);
  EXPECT_EQ(first.out().back(), again.out().back());  // with the hash
}

TEST(ServerFlagEffectsTest, APageThatIsNotThereHasNoHost) {
  for (const char* flag : {"--metrics_host=0.0.0.0", "--metrics_port_file=somewhere"}) {
    TestProgram server({"ps_server/ps_server", flag});
    EXPECT_EQ(server.Finish().code, kRefused);
    EXPECT_THAT(server.err(), ElementsAre(HasSubstr("to be left out without --metrics_port")));
  }
}

}  // namespace
}  // namespace gradsync
