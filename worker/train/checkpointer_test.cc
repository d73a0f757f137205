// What a trainer that goes on from a checkpoint takes from it.

#include "worker/train/checkpointer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/temporary_folder.h"
#include "core/group/side_channel.h"
#include "core/sync/local_sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/file_formats.h"
#include "worker/checkpoint/file_system.h"
#include "worker/data/dataset.h"
#include "worker/models/create_model.h"
#include "worker/train/job_state.h"
#include "worker/train/trainer.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointerTest() : temporary_(TemporaryFolder::Create("checkpointer-test-").value()) {}

  std::string folder() const { return temporary_.path() + "/job"; }

  // Of one worker, that goes on where there is something to go on from.
  TrainerOptions Options(int64_t steps) const {
    TrainerOptions options;
    options.model.name = "mlp";
    options.batch_size = 8;
    options.steps = steps;
    options.optimizer.groups.emplace_back();
    options.checkpoint.folder = folder();
    options.checkpoint.resume = CheckpointOptions::Resume::kAuto;
    return options;
  }

  // A bound trainer and what it is bound to.
  struct Job {
    std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
    SideChannel side_channel{WorkerGroup(), "trainer"};
    std::unique_ptr<Trainer> trainer;
  };

  static std::unique_ptr<Job> Bind(const TrainerOptions& options) {
    auto job = std::make_unique<Job>();
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(options, 0, 1);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    job->trainer = *std::move(trainer);
    EXPECT_EQ(job->trainer->Bind(job->sync.get(), &job->side_channel), absl::OkStatus());
    return job;
  }

  static void Train(const TrainerOptions& options) {
    const std::unique_ptr<Job> job = Bind(options);
    const auto result = job->trainer->Run([](const StepReport&) {});
    EXPECT_TRUE(result.ok()) << result.status();
  }

  const TemporaryFolder temporary_;
};

// A job that was resumed on other hosts had their size of chunks, and other bits than before.
TEST_F(CheckpointerTest, TheSizeOfChunksIsThatOfTheJobThatGoesOn) {
  TrainerOptions options = Options(/*steps=*/2);
  options.plan.chunk_bytes = 4096;
  Train(options);
  EXPECT_EQ(Bind(Options(4))->trainer->plan().chunk_bytes(), 4096);
  Train(Options(4));
  // Which the next checkpoint has, too.
  EXPECT_EQ(Bind(Options(6))->trainer->plan().chunk_bytes(), 4096);
}

// launch gives --threads by the host's cores, so that another host rounds otherwise.
TEST_F(CheckpointerTest, OtherThreadsThanBeforeAreSaid) {
  Train(Options(/*steps=*/2));
  std::vector<std::string> lines;
  TrainerOptions options = Options(4);
  options.checkpoint.say = [&](absl::string_view line) { lines.push_back(std::string(line)); };
  Bind(options);
  EXPECT_THAT(lines, Not(Contains(HasSubstr("--threads"))));
  options.threads = 2;
  Bind(options);
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("--threads: 2, was 1 in "),
                                    EndsWith("/step_00000002: sums within an operation may be "
                                             "rounded otherwise"))));
}

// Images that were added or removed changed the order of all, and where the job went on in it.
TEST_F(CheckpointerTest, DataOfAnotherSizeIsRefused) {
  Train(Options(/*steps=*/2));
  ModelOptions mlp;
  mlp.name = "mlp";
  const std::shared_ptr<Model> model = CreateModel(mlp).value();
  const auto load = [&](int64_t samples) {
    return Checkpointer::Create(Options(4).checkpoint, /*rank=*/0, /*world_size=*/1, samples,
                                /*steps=*/4)
        .value()
        ->LoadWeights(*model);
  };
  EXPECT_EQ(load(50000), absl::OkStatus());
  const absl::Status status = load(49999);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("--data: expected 50000 samples as in "),
                    EndsWith("/step_00000002, found \"49999 samples\"")));
}

// Checkpoints from before identities were kept have the path of the data as it was spelled, which was
// compared; now the data may have moved, but not become other data.
TEST_F(CheckpointerTest, DataAreComparedByWhatTheyAre) {
  Train(Options(/*steps=*/2));
  ModelOptions mlp;
  mlp.name = "mlp";
  const std::shared_ptr<Model> model = CreateModel(mlp).value();
  const auto load = [&](const std::string& kind, const DataIdentity& identity) {
    CheckpointOptions options = Options(4).checkpoint;
    options.data_kind = kind;
    options.data["train"] = identity;
    return Checkpointer::Create(options, /*rank=*/0, /*world_size=*/1, /*samples=*/50000,
                                /*steps=*/4)
        .value()
        ->LoadWeights(*model);
  };
  const DataIdentity same = Trainer::Create(Options(4), 0, 1).value()->data().at("train");
  EXPECT_EQ(load("synthetic", same), absl::OkStatus());
  DataIdentity other = same;
  other.what += "!";
  EXPECT_THAT(std::string(load("synthetic", other).message()),
              StartsWith("--data: expected " + same.what + " as in "));
}

TEST_F(CheckpointerTest, AnEarlierVersionsCheckpointIsComparedByTheKindOfItsData) {
  JobState state;
  state.step = 2;
  state.samples = 50000;
  state.flags = {{"data", "imagefolder:/a/folder/that/has/moved"}, {"lr", "0.1"}};
  ModelOptions mlp;
  mlp.name = "mlp";
  const std::shared_ptr<Model> model = CreateModel(mlp).value();
  const std::unique_ptr<FileSystem> files = NewLocalFileSystem();
  CheckpointFolder checkpoints(files.get(), folder(), /*keep=*/3, nullptr);
  ASSERT_EQ(checkpoints.Begin(2), absl::OkStatus());
  Safetensors weights;
  weights.tensors = StateDictOf(*model).value();
  ASSERT_EQ(checkpoints.Add("model.safetensors", EncodeSafetensors(weights).value()),
            absl::OkStatus());
  ASSERT_EQ(checkpoints.Add("state.safetensors", EncodeJobState(state, *model).value()),
            absl::OkStatus());
  ASSERT_EQ(checkpoints.Commit(), absl::OkStatus());
  const auto load = [&](const std::string& kind) {
    CheckpointOptions options = Options(4).checkpoint;
    options.job = {{"lr", "0.1"}};
    options.data_kind = kind;
    options.data["train"].what = "whatever it is now";
    return Checkpointer::Create(options, /*rank=*/0, /*world_size=*/1, /*samples=*/50000,
                                /*steps=*/4)
        .value()
        ->LoadWeights(*model);
  };
  EXPECT_EQ(load("imagefolder"), absl::OkStatus());
  EXPECT_THAT(
      std::string(load("cifar10").message()),
      AllOf(StartsWith("--data: expected imagefolder as in "), EndsWith("found \"cifar10\"")));
  // Its models had at least ten outputs.
  ModelOptions two = mlp;
  two.classes = 2;
  const std::shared_ptr<Model> smaller = CreateModel(two).value();
  CheckpointOptions options = Options(4).checkpoint;
  options.job = {{"classes", "0"}};
  options.data_kind = "imagefolder";
  const absl::Status status = Checkpointer::Create(options, /*rank=*/0, /*world_size=*/1,
                                                   /*samples=*/50000, /*steps=*/4)
                                  .value()
                                  ->LoadWeights(*smaller);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--classes=10"));
}

// A few files that were mended are no other data, but most of them are.
TEST_F(CheckpointerTest, AFewOtherFilesAreSaidAndManyAreRefused) {
  TrainerOptions options = Options(/*steps=*/2);
  Train(options);
  ModelOptions mlp;
  mlp.name = "mlp";
  const std::shared_ptr<Model> model = CreateModel(mlp).value();
  JobState state;
  state.step = 3;
  state.data["train"] = {"images", ContentTag("a") + ContentTag("b") + ContentTag("c")};
  const std::unique_ptr<FileSystem> files = NewLocalFileSystem();
  CheckpointFolder checkpoints(files.get(), folder(), /*keep=*/3, nullptr);
  ASSERT_EQ(checkpoints.Begin(3), absl::OkStatus());
  Safetensors weights;
  weights.tensors = StateDictOf(*model).value();
  ASSERT_EQ(checkpoints.Add("model.safetensors", EncodeSafetensors(weights).value()),
            absl::OkStatus());
  ASSERT_EQ(checkpoints.Add("state.safetensors", EncodeJobState(state, *model).value()),
            absl::OkStatus());
  ASSERT_EQ(checkpoints.Commit(), absl::OkStatus());
  std::string said;
  const auto load = [&](const std::string& contents) {
    CheckpointOptions checkpoint = Options(4).checkpoint;
    checkpoint.data["train"] = {"images", contents};
    checkpoint.say = [&](absl::string_view line) { said = std::string(line); };
    return Checkpointer::Create(checkpoint, /*rank=*/0, /*world_size=*/1, /*samples=*/50000,
                                /*steps=*/4)
        .value()
        ->LoadWeights(*model);
  };
  EXPECT_EQ(load(ContentTag("a") + ContentTag("b") + ContentTag("d")), absl::OkStatus());
  EXPECT_THAT(said,
              StartsWith("--data: of 3 files of the train split that were looked into, 1 are"));
  EXPECT_FALSE(load(ContentTag("a") + ContentTag("e") + ContentTag("d")).ok());
}

// After a kill between a checkpoint and the link to it, the state said that it was the best, the link
// another one, and nothing set it right.
TEST_F(CheckpointerTest, TheBestIsLinkedAgainWhereItsWriterDidNotComeToIt) {
  TrainerOptions options = Options(/*steps=*/4);
  options.batch_size = 500;
  options.checkpoint.every_steps = 2;
  options.checkpoint.best = true;
  Train(options);
  const std::string link = folder() + "/best";
  const std::string best = std::filesystem::read_symlink(link).string();
  const std::string other = best == "step_00000004" ? "step_00000002" : "step_00000004";
  ASSERT_TRUE(std::filesystem::exists(folder() + "/" + other));
  std::filesystem::remove(link);
  std::filesystem::create_symlink(other, link);
  Bind(options);
  EXPECT_EQ(std::filesystem::read_symlink(link).string(), best);
}

}  // namespace
}  // namespace gradsync
