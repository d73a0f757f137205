// Bad input to the processes themselves: one line on stderr that names the flag or file, what was
// expected and what came, and exit code 2, or 1 where others do not come, before any training.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/fault_injection.h"
#include "core/base/sanitizers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/job_processes.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWorker[] = "worker/worker";
constexpr char kServer[] = "ps_server/ps_server";

// What a worker on the CPU lacks for NCCL: such a build, or a GPU.
#ifdef GRADSYNC_CUDA
constexpr char kHowToNccl[] = "--device=cuda";
#else
constexpr char kHowToNccl[] = "--config=cuda";
#endif

// What is wrong with a process's own input, and that it cannot begin without others.
constexpr int kRefused = 2;
constexpr int kAlone = 1;

void ExpectEnd(TestProgram* program, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(program->Finish().code, code);
  ASSERT_THAT(program->err(), ElementsAre(HasSubstr(":")));
  for (const std::string& word : words) EXPECT_THAT(program->err()[0], HasSubstr(word));
}

// Runs `binary flags...` and expects one line with all `words`.
void ExpectEnd(const std::string& binary, const std::vector<std::string>& flags, int code,
               const std::vector<std::string>& words) {
  std::vector<std::string> argv = {binary};
  argv.insert(argv.end(), flags.begin(), flags.end());
  SCOPED_TRACE(::testing::PrintToString(argv));
  TestProgram program(argv);
  ExpectEnd(&program, code, words);
}

void ExpectRefused(const std::string& binary, const std::vector<std::string>& flags,
                   const std::vector<std::string>& words) {
  ExpectEnd(binary, flags, kRefused, words);
}

// A new folder for files of one test, removed at the end.
class NewFolder {
 public:
  NewFolder() : path_(::testing::TempDir() + "/bad_input_test-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~NewFolder() { std::filesystem::remove_all(path_); }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  void Write(const std::string& file, size_t bytes) {
    std::ofstream(path_ + "/" + file, std::ios::binary);
    std::filesystem::resize_file(path_ + "/" + file, bytes);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(WorkerBadInputTest, FlagsThatDoNotExistOrFit) {
  ExpectRefused(kWorker, {"--modle=mlp"}, {"--modle", "--model"});
  ExpectRefused(kWorker, {"--steps=many"}, {"--steps", "many"});
  ExpectRefused(kWorker, {"--model=resnet19"}, {"model", "resnet18", "resnet19"});
  ExpectRefused(kWorker, {"--stem=root"}, {"stem", "imagenet", "root"});
  ExpectRefused(kWorker, {"--topology=star"}, {"--topology", "ring", "star"});
  ExpectRefused(kWorker, {"--link=rdma"}, {"--link", "grpc", "rdma"});
  ExpectRefused(kWorker, {"--update=nobody"}, {"--update", "owner", "nobody"});
  ExpectRefused(kWorker, {"--consistency=ssp:2"}, {"--consistency", "bsp", "ssp:2", "local"});
  ExpectRefused(kWorker, {"--optimizer=lion"}, {"--optimizer", "sgd", "lion"});
  ExpectRefused(kWorker, {"--schedule=steep"}, {"schedule", "cosine", "steep"});
  ExpectRefused(kWorker, {"--device=gpu"}, {"--device", "cpu", "cuda", "gpu"});
  ExpectRefused(kWorker, {"--model=mlp", "--batch_size=0"}, {"batch", "0"});
  ExpectRefused(kWorker, {"--model=mlp", "--threads=0"}, {"--threads", "0"});
  // Looked hung for a minute.
  ExpectRefused(kWorker, {"--model=mlp", "--threads=100000"}, {"--threads", "1024", "100000"});
  ExpectRefused(kWorker, {"--model=mlp", "--log_every=-1"}, {"--log_every", "at least 0", "-1"});
  ExpectRefused(kWorker, {"--model=mlp", "--attempt=-5"}, {"--attempt", "at least 0", "-5"});
  ExpectRefused(kWorker, {"--model=mlp", "--timeout=0"}, {"--timeout", "above 0", "\"0\""});
  ExpectRefused(kWorker, {"--model=mlp", "--timeout=-3s"}, {"--timeout", "above 0", "-3s"});
  ExpectRefused(kWorker, {"--model=mlp", "--bucket_bytes=0"}, {"--bucket_bytes", "at least 1"});
  ExpectRefused(kWorker, {"--model=mlp", "--first_bucket_bytes=0"},
                {"--first_bucket_bytes", "at least 1"});
  ExpectRefused(kWorker, {"--model=mlp", "--steps=-1"}, {"steps", "-1"});
  ExpectRefused(kWorker, {"--failure_timeout=0s"}, {"--failure_timeout", "100ms", "0"});
  ExpectRefused(kWorker, {"--straggler=1"}, {"--straggler", "RANK:FACTOR", "1"});
  ExpectRefused(kWorker, {"--model=mlp", "--straggler=0:0.5"}, {"--straggler", "0:0.5"});
  ExpectRefused(kWorker, {"--model=mlp", "--straggler=1:2"}, {"--straggler", "0 to 0", "1:2"});
  ExpectRefused(kWorker, {"--trace=t.json", "--trace_steps=0:3"}, {"--trace_steps", "0:3"});
  ExpectRefused(kWorker, {"--model=mlp", "--steps=9", "--trace=t.json", "--trace_steps=8:3"},
                {"--trace_steps", "9", "8 to 10"});
  ExpectRefused(kWorker, {"--model=mlp", "--steps=9", "--trace=/no/t.json", "--trace_steps=2:3"},
                {"--trace", "/no/t.json"});
  const std::vector<std::string> job = {"--model=mlp", "--steps=9", "--trace=t.pftrace"};
  ExpectRefused(kWorker, With(job, {"--trace_steps=5-3"}), {"--trace_steps", "FIRST-LAST", "5-3"});
  ExpectRefused(kWorker, With(job, {"--trace_steps=8-10"}), {"--trace_steps", "9", "8 to 10"});
  ExpectRefused(kWorker, With(job, {"--trace_steps=2-3", "--trace_bandwidth=fast"}),
                {"--trace_bandwidth", "400mbit", "fast"});
  ExpectRefused(
      kWorker,
      With(job, {"--trace_steps=2-3", "--trace_bandwidth=1gbit", "--trace_placement=here"}),
      {"--trace_placement", "colocated", "here"});
  ExpectRefused(kWorker, With(job, {"--trace_steps=2-3", "--trace=/no/t.pftrace"}),
                {"--trace", "/no/t.pftrace"});
  ExpectRefused(kWorker, {"--model=mlp", "--steps=9", "--tensorboard=/proc/no"},
                {"--tensorboard", "/proc/no"});
#ifndef GRADSYNC_CUDA
  const NewFolder folder;
  ExpectRefused(kWorker,
                {"--model=mlp", "--steps=9", absl::StrCat("--trace=", folder.path(), "/t.json"),
                 "--trace_steps=2:3"},
                {"--trace", "Kineto", "--config=cuda"});
#endif
  ExpectRefused(kWorker, {"mlp"}, {"mlp"});
}

// One of them won in silence.
TEST(WorkerBadInputTest, AWorkerDoesOneTask) {
  const std::vector<std::string> flags = {"--model=mlp"};
  ExpectRefused(kWorker, With(flags, {"--describe_model", "--check_data"}),
                {"--describe_model: expected false with --check_data"});
  ExpectRefused(kWorker, With(flags, {"--evaluate_only", "--init_from=w.pt", "--describe_model"}),
                {"--evaluate_only: expected false with --describe_model"});
  ExpectRefused(kWorker, With(flags, {"--evaluate_only", "--init_from=w.pt", "--check_data"}),
                {"--evaluate_only: expected false with --check_data"});
}

// Weights were drawn for a minute beside which there was no room, or LibTorch's words came with its
// stack.
TEST(WorkerBadInputTest, ModelsThatDoNotFit) {
  for (const std::string classes : {"--classes=1000000000000", "--classes=9000000000000000000"}) {
    ExpectRefused(
        kWorker, {"--model=mlp", classes},
        {"--model=mlp, " + classes, "weights, gradients and the optimizer's state: expected",
         "bytes of memory", ", found "});
    ExpectRefused(kWorker, {"--model=vgg16", classes, "--describe_model"},
                  {"--model=vgg16, " + classes, ": weights: expected", "bytes of memory"});
  }
  ExpectRefused(kWorker, {"--model=gpt", "--gpt_width=1000000", "--gpt_heads=1", "--batch_size=1"},
                {"--gpt_width=1000000", "bytes of memory"});
}

#if !defined(GRADSYNC_ADDRESS_SANITIZER) && !defined(GRADSYNC_THREAD_SANITIZER) && \
    !defined(GRADSYNC_CUDA)
// Of which the host's memory says nothing. Sanitizers take more addresses than that for themselves.
TEST(WorkerBadInputTest, ALimitOfTheProcessesMemoryEndsInOneLine) {
  TestProgram program({"/bin/sh", "-c", "ulimit -v 2500000; exec \"$0\" \"$@\"", kWorker,
                       "--model=mlp", "--classes=20000000", "--describe_model"});
  ExpectEnd(&program, kRefused, {"--model=mlp, --classes=20000000: weights: expected ", "2640"});
  for (const std::string& line : program.err()) EXPECT_THAT(line, Not(HasSubstr("frame #")));
}
#endif

TEST(WorkerBadInputTest, WhatCannotBeOffloaded) {
  ExpectRefused(kWorker, {"--offload=all"}, {"--offload", "none, optimizer or parameters", "all"});
  ExpectRefused(kWorker, {"--offload=optimizer"}, {"--offload", "--device=cpu", "optimizer"});
  ExpectRefused(kWorker, {"--offload=parameters"}, {"--offload", "--device=cpu", "parameters"});
  const std::vector<std::string> gpu = {"--device=cuda", "--local_rank=0"};
  ExpectRefused(kWorker, With(gpu, {"--offload=parameters"}),
                {"--offload", "none or optimizer", "--zero=3", "--topology=local", "parameters"});
  const std::vector<std::string> ring = With(gpu, {"--topology=ring", "--master=127.0.0.1:0"});
  ExpectRefused(kWorker, With(ring, {"--offload=parameters", "--max_norm=1"}),
                {"--offload", "none or optimizer", "--max_norm", "parameters"});
  for (const std::string link : {"nccl", "cuda_ipc", "gloo"}) {
    for (const std::string what : {"optimizer", "parameters"}) {
      ExpectRefused(kWorker, With(ring, {"--offload=" + what, "--link=" + link}),
                    {"--offload", "none with --link=" + link, what});
    }
  }
  for (const std::string zero : {"1", "2"}) {
    ExpectRefused(kWorker, With(ring, {"--offload=parameters", "--zero=" + zero}),
                  {"--zero", "3 or nothing with --offload=parameters", zero});
  }
  for (const std::string zero : {"2", "3"}) {
    ExpectRefused(kWorker, With(ring, {"--zero=" + zero, "--link=nccl"}),
                  {"--zero", "0 or 1 with --link=nccl", zero});
  }
}

TEST(WorkerBadInputTest, FlagsOfData) {
  const std::string images = "--data=imagefolder:/no/such/folder";
  ExpectRefused(kWorker, {"--model=mlp", images}, {"/no/such/folder/train", "does not exist"});
  // A form that was forgotten, before the flags that go with it.
  NewFolder folder;
  ExpectRefused(kWorker, {"--model=mlp", "--data=" + folder.path(), "--image_size=32"},
                {"--data: expected", "did you mean --data=imagefolder:" + folder.path()});
  ExpectRefused(kWorker, {"--model=mlp", "--data=ImageFolder:" + folder.path(), "--image_size=32"},
                {"--data: expected", "did you mean --data=imagefolder:" + folder.path()});
  ExpectRefused(kWorker, {"--model=mlp", "--data=text:"}, {"--data: expected a file after"});
  ExpectRefused(kWorker, {"--model=mlp", images, "--image_size=-1"},
                {"--image_size", "1024", "-1"});
  ExpectRefused(kWorker, {"--model=mlp", images, "--crop=oval"}, {"--crop", "padded", "oval"});
  ExpectRefused(kWorker, {"--model=mlp", "--image_size=64"}, {"--image_size", "imagefolder:"});
  ExpectRefused(kWorker, {"--model=mlp", "--crop=padded"}, {"--crop", "imagefolder:"});
  ExpectRefused(kWorker, {"--model=mlp", "--scaled_decoding=false"},
                {"--scaled_decoding", "imagefolder:", "synthetic"});
  ExpectRefused(kWorker, {"--model=mlp", "--sampler=torch"}, {"--sampler", "pytorch", "torch"});
}

TEST(WorkerBadInputTest, PrecisionsThatCannotBe) {
  ExpectRefused(kWorker, {"--model=mlp", "--precision=fp8"},
                {"--precision", "fp32, bf16 or fp16", "fp8"});
  ExpectRefused(kWorker, {"--model=mlp", "--precision=fp16"},
                {"--precision", "fp32 or bf16", "CPU", "fp16"});
  ExpectRefused(kWorker,
                {"--model=mlp", "--precision=fp16", "--topology=ring", "--update=owner",
                 "--master=127.0.0.1:0"},
                {"--precision", "--update=owner", "fp16"});
  ExpectRefused(kWorker,
                {"--model=mlp", "--precision=fp16", "--topology=ps", "--compression=topk:0.1",
                 "--servers=127.0.0.1:1", "--master=127.0.0.1:0"},
                {"--precision", "--compression=topk:0.1", "fp16"});
  ExpectRefused(kWorker, {"--model=mlp", "--tf32"}, {"--tf32", "with --device=cpu"});
  ExpectRefused(kWorker, {"--model=mlp", "--channels_last=maybe"}, {"--channels_last", "maybe"});
}

TEST(WorkerBadInputTest, ConsistenciesThatCannotBe) {
  const std::vector<std::string> ps = {"--model=mlp", "--topology=ps", "--servers=127.0.0.1:1",
                                       "--master=127.0.0.1:0"};
  const auto expect_refused = [&ps](std::vector<std::string> flags,
                                    const std::vector<std::string>& words) {
    flags.insert(flags.begin(), ps.begin(), ps.end());
    ExpectRefused(kWorker, flags, words);
  };
  for (const std::string value : {"ssp:-1", "ssp:many", "ssp", "hogwild"}) {
    expect_refused({"--update=owner", "--consistency=" + value}, {"--consistency", "ssp:S", value});
  }
  expect_refused({"--consistency=asp"}, {"--consistency", "--update=owner", "asp"});
  expect_refused({"--update=owner", "--consistency=ssp:1", "--link=shm"},
                 {"--consistency", "--link=shm", "ssp:1"});
  expect_refused({"--update=owner", "--consistency=ssp:1", "--compression=fp16"},
                 {"--consistency", "--compression=fp16", "ssp:1"});
  expect_refused({"--update=owner", "--consistency=asp", "--max_norm=1"},
                 {"--max_norm", "--consistency=asp"});
  for (const std::string topology : {"--topology=ring", "--topology=local"}) {
    ExpectRefused(kWorker, {"--model=mlp", topology, "--consistency=asp"},
                  {"--consistency", topology, "asp"});
  }
  ExpectRefused(kWorker, {"--model=mlp", "--topology=ring", "--link=gloo", "--consistency=ssp:2"},
                {"--consistency", "ssp:2"});
}

TEST(WorkerBadInputTest, RanksAndAddressesThatCannotBe) {
  ExpectRefused(kWorker, {"--rank=2", "--world_size=2", "--master=127.0.0.1:1"},
                {"--rank", "0 to 1", "2"});
  ExpectRefused(kWorker, {"--rank=0", "--world_size=0"}, {"--world_size", "at least 1", "0"});
  ExpectRefused(kWorker, {"--topology=ring", "--rank=0", "--world_size=2"}, {"--master"});
  ExpectRefused(kWorker, {"--topology=ring", "--master=nowhere"}, {"--master", "nowhere"});
  ExpectRefused(kWorker, {"--topology=ps", "--owners=3", "--world_size=2", "--master=127.0.0.1:0"},
                {"--owners", "at most 2", "3"});
  ExpectRefused(kWorker, {"--topology=ps", "--owners=1", "--servers=127.0.0.1:1"},
                {"--owners", "--servers", "1"});
  ExpectRefused(kWorker, {"--topology=ring", "--servers=127.0.0.1:1"}, {"--servers", "ring"});
  ExpectRefused(kWorker,
                {"--model=mlp", "--topology=ps", "--servers=nonsense", "--master=127.0.0.1:0"},
                {"--servers", "nonsense"});
}

TEST(WorkerBadInputTest, LinksThatThisBuildLacksOrThatCannotDoIt) {
  ExpectRefused(kWorker, {"--topology=local", "--link=shm"}, {"--link", "local", "shm"});
  ExpectRefused(kWorker, {"--topology=ring", "--link=nccl", "--master=127.0.0.1:0"},
                {"--link", "nccl", kHowToNccl});
  ExpectRefused(kWorker, {"--topology=ps", "--link=nccl", "--master=127.0.0.1:0"},
                {"--link", "nccl", kHowToNccl});
  ExpectRefused(kWorker, {"--topology=ps", "--link=nccl", "--servers=127.0.0.1:1"},
                {"--servers", "--owners", "--link=nccl"});
  ExpectRefused(kWorker, {"--topology=ring", "--owners=1"}, {"--owners", "--topology=ring", "1"});
  ExpectRefused(kWorker, {"--topology=ring", "--link=gloo", "--update=owner"},
                {"--update", "worker", "gloo"});
  ExpectRefused(kWorker, {"--topology=ps", "--link=gloo", "--servers=127.0.0.1:1"},
                {"--link", "grpc", "gloo"});
}

TEST(WorkerBadInputTest, CompressionThatIsNoneOrThatCannotBe) {
  ExpectRefused(kWorker, {"--compression=fp8"}, {"--compression", "topk:R", "fp8"});
  ExpectRefused(kWorker, {"--compression=topk:0"}, {"--compression", "0 < R <= 1", "topk:0"});
  ExpectRefused(kWorker, {"--compression=topk:1.5"}, {"--compression", "0 < R <= 1", "topk:1.5"});
  ExpectRefused(kWorker, {"--compression=bf16"}, {"--compression", "--topology=local", "bf16"});
  ExpectRefused(kWorker, {"--topology=ring", "--link=shm", "--compression=bf16"},
                {"--compression", "memory", "bf16"});
  ExpectRefused(kWorker, {"--topology=ring", "--link=gloo", "--compression=fp16"},
                {"--compression", "gloo", "fp16"});
  ExpectRefused(kWorker, {"--topology=ring", "--compression=topk:0.1"},
                {"--compression", "--topology=ring", "topk:0.1"});
}

TEST(WorkerBadInputTest, DataThatIsMissingTruncatedOrTooLittle) {
  ExpectRefused(kWorker, {"--model=mlp", "--data=mnist"}, {"data", "cifar10:DIR", "mnist"});
  ExpectRefused(kWorker, {"--model=mlp", "--data=cifar10:/no/such/folder"}, {"/no/such/folder"});
  NewFolder folder;
  const std::string data = absl::StrCat("--data=cifar10:", folder.path());
  ExpectRefused(kWorker, {"--model=mlp", data}, {folder.path()});
  for (int i = 1; i <= 5; ++i) folder.Write(absl::StrCat("data_batch_", i, ".bin"), 30730000);
  folder.Write("test_batch.bin", 30730000);
  folder.Write("data_batch_3.bin", 12345);
  ExpectRefused(kWorker, {"--model=mlp", data}, {"data_batch_3.bin", "30730000", "12345"});
  ExpectRefused(kWorker, {"--model=mlp", "--batch_size=100000000"}, {"batch", "100000000"});
  ExpectRefused(kWorker, {"--model=resnet18", "--batch_size=49999"},
                {"--batch_size", "a single image", "BatchNorm", "50000 images", "49999"});
}

TEST(WorkerBadInputTest, PeersThatCannotBeReachedAreNamed) {
  const DeafProcess closed;
  ExpectEnd(kWorker,
            {"--model=mlp", "--topology=ring", "--rank=1", "--world_size=2", "--timeout=2s",
             "--master=" + closed.address()},
            kAlone, {closed.address()});
  ExpectEnd(kWorker,
            {"--model=mlp", "--topology=ps", "--rank=0", "--world_size=1", "--timeout=2s",
             "--master=127.0.0.1:0", "--servers=" + closed.address()},
            kAlone, {closed.address()});
}

TEST(WorkerBadInputTest, APortThatIsTakenIsNamed) {
  DeafProcess taken;
  taken.Listen();
  ExpectRefused(kWorker,
                {"--model=mlp", "--topology=ring", "--rank=0", "--world_size=2", "--timeout=2s",
                 "--master=" + taken.address()},
                {taken.address()});
}

TEST(WorkerBadInputTest, ARankThatGivesUpEndsTheOthersWait) {
  const std::vector<std::string> patient = {"--model=mlp", "--topology=ring", "--timeout=300s"};
  // Both wait for a third.
  WorkerProcesses workers({patient, With(patient, {"--timeout=2s"})}, /*world_size=*/3);
  ExpectEnd(&workers[1], kAlone, {"rank 2 of 3 has not come"});
  ExpectEnd(&workers[0], kAlone, {"rank 2 of 3 has not come"});
}

TEST(WorkerBadInputTest, SchedulesThatLackSomethingOrAreToldTooMuch) {
  const auto expect_refused = [](std::vector<std::string> flags,
                                 const std::vector<std::string>& words) {
    flags.insert(flags.begin(), {"--model=mlp", "--steps=10"});
    ExpectRefused(kWorker, flags, words);
  };
  expect_refused({"--schedule=step"}, {"--lr_milestones", "--schedule=step"});
  expect_refused({"--schedule=step", "--lr_milestones=5,x"}, {"--lr_milestones", "5,x"});
  expect_refused({"--schedule=step", "--lr_milestones=5,1e"}, {"--lr_milestones", "5,1e"});
  expect_refused({"--schedule=step", "--lr_milestones=0,5"}, {"--lr_milestones", "0,5"});
  expect_refused({"--schedule=step", "--lr_milestones=5,5"}, {"--lr_milestones", "6", "5"});
  expect_refused({"--schedule=step", "--lr_milestones=5,10"}, {"--lr_milestones", "10", "5,10"});
  expect_refused({"--schedule=step", "--lr_milestones=1e"}, {"--lr_milestones", "epoch", "1e"});
  expect_refused({"--schedule=step", "--lr_milestones=5", "--lr_gamma=-1"}, {"--lr_gamma", "-1"});
  expect_refused({"--lr_milestones=5"}, {"--lr_milestones", "--schedule=constant", "5"});
  expect_refused({"--lr_gamma=0.5"}, {"--lr_gamma", "--schedule=constant", "0.5"});
  expect_refused({"--lr_final=0.5"}, {"--lr_final", "--schedule=constant", "0.5"});
  expect_refused({"--schedule=cosine", "--lr_final=nan"}, {"--lr_final", "nan"});
  expect_refused({"--schedule=cosine", "--lr_warmup_steps=10"}, {"--lr_warmup_steps", "10"});
  expect_refused({"--lr_warmup_steps=-1"}, {"--lr_warmup_steps", "-1"});
  expect_refused({"--lr=-1"}, {"--lr", "-1"});
}

// Were taken in silence, and did nothing.
TEST(WorkerNoticeTest, WhatIsNeverDueIsSaid) {
  const std::vector<std::string> job = {"--model=mlp", "--batch_size=500", "--steps=4"};
  const auto notices = [&job](const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {kWorker};
    TestProgram program(With(With(argv, job), flags));
    EXPECT_EQ(program.Finish().code, 0);
    return program.err();
  };
  EXPECT_THAT(notices({"--evaluate_every=100"}),
              ElementsAre(AllOf(HasSubstr("--evaluate_every: 100 is never due in a job of 4 steps"),
                                Not(HasSubstr("average")))));
  EXPECT_THAT(notices({"--evaluate_every=5", "--ema_decay=0.9"}),
              ElementsAre(HasSubstr("nor is the average of --ema_decay=0.9 used")));
  EXPECT_THAT(notices({"--evaluate_every=4"}), ElementsAre());
  EXPECT_THAT(notices({"--evaluate_every=100", "--evaluate"}), ElementsAre());
  EXPECT_THAT(
      notices({"--lr_warmup=1000", "--lr=1"}),
      ElementsAre(HasSubstr("--lr_warmup: a rise over 1000 steps is not over in a job of 4 steps: "
                            "its learning rate ends at 0.004 and never gets to 1")));
  EXPECT_THAT(notices({"--lr_warmup_steps=4"}), ElementsAre());
  EXPECT_THAT(notices({"--lr_warmup_steps=4", "--lr_warmup_start=0.1"}),
              ElementsAre(HasSubstr("--lr_warmup: a rise over 4 steps")));
  EXPECT_THAT(notices({"--lr_warmup_steps=3", "--lr_warmup_start=0.1"}), ElementsAre());
}

TEST(WorkerBadInputTest, RecipesThatCannotBe) {
  const auto expect_refused = [](std::vector<std::string> flags,
                                 const std::vector<std::string>& words) {
    flags.insert(flags.begin(), {"--model=mlp", "--steps=10"});
    ExpectRefused(kWorker, flags, words);
  };
  expect_refused({"--accumulate=0"}, {"--accumulate", "at least 1", "0"});
  expect_refused({"--label_smoothing=1.5"}, {"--label_smoothing", "0 to 1", "1.5"});
  expect_refused({"--label_smoothing=nan"}, {"--label_smoothing", "nan"});
  expect_refused({"--ema_decay=1", "--evaluate"}, {"--ema_decay", "less than 1", "1"});
  expect_refused({"--no_weight_decay=bias,fc9.weight"}, {"--no_weight_decay", "fc9.weight"});
  expect_refused({"--momentum=1.5"}, {"--momentum: expected at least 0 and less than 1", "1.5"});
  expect_refused({"--momentum=1"}, {"--momentum", "less than 1"});
  expect_refused({"--momentum=-0.5"}, {"--momentum", "at least 0", "-0.5"});
  expect_refused({"--momentum=0", "--nesterov"}, {"--momentum", "above 0 with --nesterov"});
  expect_refused({"--weight_decay=-1"}, {"--weight_decay: expected", "at least 0", "-1"});
  expect_refused({"--sync_batchnorm"}, {"--sync_batchnorm", "BatchNorm", "mlp"});
  expect_refused({"--lr_power=2"}, {"--lr_power", "--schedule=constant", "2"});
  expect_refused({"--lr_warmup=5x"}, {"--lr_warmup", "5e", "5x"});
  expect_refused({"--lr_warmup=5", "--lr_warmup_steps=5"}, {"--lr_warmup", "--lr_warmup_steps"});
  expect_refused({"--lr_warmup_start=0.5"}, {"--lr_warmup_start", "--lr_warmup", "0.5"});
  expect_refused({"--lr_warmup=5", "--lr_warmup_start=2"}, {"--lr_warmup_start", "0 to 1", "2"});
  expect_refused({"--schedule=poly", "--lr_warmup=10"}, {"--lr_warmup", "10", "--schedule=poly"});
  expect_refused({"--lr_scaling=cubic"}, {"--lr_scaling", "linear", "cubic"});
  expect_refused({"--lr_reference_batch=128"}, {"--lr_reference_batch", "--lr_scaling"});
  const std::vector<std::string> ssp = {"--topology=ps", "--servers=127.0.0.1:1",
                                        "--master=127.0.0.1:0", "--update=owner",
                                        "--consistency=ssp:2"};
  expect_refused(With(ssp, {"--sync_batchnorm"}), {"--sync_batchnorm", "--consistency=ssp:2"});
  expect_refused(With(ssp, {"--ema_decay=0.9", "--evaluate"}),
                 {"--ema_decay", "--consistency=ssp:2", "0.9"});
  expect_refused({"--sync_batchnorm", "--world_size=2", "--rank=0", "--master=127.0.0.1:0"},
                 {"--sync_batchnorm", "--topology=local"});
}

TEST(ServerBadInputTest, FlagsThatDoNotExistOrFit) {
  ExpectRefused(kServer, {"--lisen=127.0.0.1:0"}, {"--lisen", "--listen"});
  ExpectRefused(kServer, {"--listen=nowhere"}, {"--listen", "nowhere"});
  ExpectRefused(kServer, {"--listen=127.0.0.1:99999"}, {"--listen", "99999"});
  ExpectRefused(kServer, {"--timeout=0s"}, {"--timeout", "0"});
  ExpectRefused(kServer, {"--failure_timeout=50ms"}, {"--failure_timeout", "100ms", "50ms"});
  ExpectRefused(kServer, {"--timeout=soon"}, {"--timeout", "soon"});
  ExpectRefused(kServer, {"--master=nowhere"}, {"--master", "nowhere"});
  ExpectRefused(kServer, {"--attempt=-2"}, {"--attempt", "-2"});
  ExpectRefused(kServer, {"now"}, {"now"});
  ExpectRefused(kServer, {"--listen=127.0.0.1:0", "--port_file=/no/such/folder/port"},
                {"/no/such/folder/port"});
  ExpectRefused(kServer, {"--event_log=/no/such/folder/events"},
                {"--event_log", "/no/such/folder/events"});
}

TEST(ServerBadInputTest, APortThatIsTakenOrAMasterThatIsNotThereIsNamed) {
  DeafProcess taken;
  taken.Listen();
  ExpectRefused(kServer, {"--listen=" + taken.address()}, {"--listen", taken.address()});
  const DeafProcess closed;
  ExpectEnd(kServer, {"--master=" + closed.address(), "--timeout=2s"}, kAlone, {closed.address()});
}

}  // namespace
}  // namespace gradsync
