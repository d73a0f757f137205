// Jobs on image folders, by real processes. worker/data/testdata/make_images.py makes the images.

#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/sanitizers.h"
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
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kSkip = 77;

class ImageFolderJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int status = std::system(
        absl::StrCat("/usr/bin/python3 worker/data/testdata/make_images.py folder ", path())
            .c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == kSkip) GTEST_SKIP() << "needs python3-pil, which tools/setup installs";
    ASSERT_EQ(code, 0);
  }

  const std::string& path() const { return folder_.path(); }

  LocalJobOptions Job(int workers, int servers, const std::vector<std::string>& flags) const {
    LocalJobOptions options;
    options.worker_binary = "worker/worker";
    options.server_binary = "ps_server/ps_server";
    options.workers = workers;
    options.servers = servers;
    options.worker_flags = With({"--model=mlp", "--data=imagefolder:" + path(), "--image_size=32",
                                 "--batch_size=2", "--epochs=3", "--timeout=60s"},
                                flags);
    options.collect_metrics = true;
    return options;
  }

  // Of rank 0 of a job that must succeed, whose lines go to out_.
  proto::WorkerMetrics Train(int workers, int servers, const std::vector<std::string>& flags) {
    LocalJobOptions options = Job(workers, servers, flags);
    out_.clear();
    err_.clear();
    options.on_line = [this](absl::string_view, absl::string_view line, bool is_stderr) {
      (is_stderr ? err_ : out_).push_back(std::string(line));
    };
    const auto result = RunLocalJob(options);
    EXPECT_TRUE(result.ok()) << result.status();
    proto::WorkerMetrics metrics;
    if (!result.ok()) return metrics;
    EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
    if (result->exit_code != 0) return metrics;
    EXPECT_TRUE(
        google::protobuf::util::JsonStringToMessage(result->worker_metrics[0], &metrics).ok());
    return metrics;
  }

  // The lines on stderr of a job that must end with 1.
  std::vector<std::string> ErrorsOf(LocalJobOptions options) {
    std::vector<std::string> errors;
    options.on_line = [&errors](absl::string_view, absl::string_view line, bool is_stderr) {
      if (is_stderr) errors.push_back(std::string(line));
    };
    const auto result = RunLocalJob(options);
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) EXPECT_EQ(result->exit_code, 1);
    return errors;
  }

  std::vector<std::string> out_;
  std::vector<std::string> err_;

 private:
  TemporaryFolder folder_ = TemporaryFolder::Create("image_folder_job_test").value();
};

TEST_F(ImageFolderJobTest, BitsAreThoseOfSeedsWhateverPreparesAndSynchronises) {
  const auto ring = Train(2, 0, {"--topology=ring", "--evaluate"});
  EXPECT_THAT(out_, Contains(StartsWith("test loss ")));
  const auto more = Train(2, 0, {"--topology=ring", "--loader_threads=3", "--prefetch_bytes=0"});
  EXPECT_EQ(more.loader_threads(), 3);
  EXPECT_EQ(more.params_sha256(), ring.params_sha256());
  const auto servers = Train(2, 1, {"--topology=ps", "--update=owner"});
  EXPECT_EQ(servers.params_sha256(), ring.params_sha256());
  const auto seeded = Train(2, 0, {"--topology=ring", "--seed=1"});
  EXPECT_NE(seeded.params_sha256(), ring.params_sha256());
}

// One line on stderr with all of `words`, and exit code 2.
void ExpectRefused(const std::vector<std::string>& argv, const std::vector<std::string>& words) {
  SCOPED_TRACE(::testing::PrintToString(argv));
  TestProgram worker(argv);
  EXPECT_EQ(worker.Finish().code, 2);
  ASSERT_THAT(worker.err(), SizeIs(1));
  for (const std::string& word : words) EXPECT_THAT(worker.err()[0], HasSubstr(word));
}

// Of its one split it said so twice, or not at all.
TEST_F(ImageFolderJobTest, AnEvaluationAloneSaysOnceWhichImagesItHas) {
  const std::string kept = path() + "/kept";
  Train(1, 0, {"--checkpoint=" + kept});
  EXPECT_THAT(out_, Contains(HasSubstr(" training images of ")).Times(1));
  Train(1, 0, {"--resume=" + kept, "--evaluate_only"});
  EXPECT_THAT(out_, Contains(HasSubstr(" test images of ")).Times(1));
  // It named neither the flag nor the checkpoint.
  ExpectRefused({"worker/worker", "--model=mlp", "--data=imagefolder:" + path(), "--image_size=48",
                 "--evaluate_only", "--resume=" + kept},
                {"--image_size: expected \"32\" as in ", "found \"48\""});
}

TEST_F(ImageFolderJobTest, CropAndOrderAreAsTheFlagsSay) {
  const auto resized = Train(1, 0, {});
  EXPECT_EQ(resized.sampler(), "gradsync");
  const auto padded = Train(1, 0, {"--crop=padded"});
  EXPECT_NE(padded.params_sha256(), resized.params_sha256());
  const auto pytorch = Train(1, 0, {"--sampler=pytorch"});
  EXPECT_EQ(pytorch.sampler(), "pytorch");
  EXPECT_NE(pytorch.params_sha256(), resized.params_sha256());
}

TEST_F(ImageFolderJobTest, TheTimeWaitedForDataIsShownAndRecorded) {
  const auto metrics = Train(1, 0, {"--log_every=1"});
  EXPECT_GE(metrics.data_wait_share(), 0);
  EXPECT_LT(metrics.data_wait_share(), 1);
  EXPECT_THAT(out_, Contains(HasSubstr(" data ")));
  EXPECT_THAT(out_, Contains(HasSubstr("waited for data ")));
}

TEST_F(ImageFolderJobTest, ADamagedFileEndsTheJobAndIsNamed) {
  const std::string damaged = path() + "/train/bee/2.jpg";
  std::ofstream(damaged, std::ios::trunc) << "no image";
  const std::vector<std::string> errors = ErrorsOf(Job(2, 0, {"--topology=ring"}));
  ASSERT_FALSE(errors.empty());
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(damaged));
}

// A worker alone, with more flags.
std::vector<std::string> Alone(const std::string& folder, const std::vector<std::string>& flags) {
  return With({"worker/worker", "--model=mlp", "--data=imagefolder:" + folder, "--image_size=32",
               "--batch_size=2", "--epochs=1"},
              flags);
}

// Damages two of the seven training images and one of the five of the test split.
void Damage(const std::string& folder) {
  std::ofstream(folder + "/train/bee/2.jpg", std::ios::trunc) << "<!DOCTYPE html>";
  std::filesystem::resize_file(folder + "/train/ant/a/deep/er/1.jpg", 700);
  std::filesystem::resize_file(folder + "/val/bee/wide.jpg", 0);
}

// With two class folders a model had ten outputs.
TEST_F(ImageFolderJobTest, TheModelHasAsManyOutputsAsTheDataHasClasses) {
  constexpr int kHidden = 3 * 32 * 32 * 32 + 32;
  EXPECT_EQ(Train(1, 0, {}).parameters(), kHidden + 33 * 3);
  EXPECT_THAT(out_, Contains(HasSubstr("in 3 classes: Cat, ant, bee")));
  EXPECT_EQ(Train(1, 0, {"--classes=12"}).parameters(), kHidden + 33 * 12);
  ExpectRefused(Alone(path(), {"--classes=2"}), {"--classes: expected at least 3", "found \"2\""});
  std::filesystem::remove_all(path() + "/train/Cat");
  std::filesystem::remove_all(path() + "/val/Cat");
  EXPECT_EQ(Train(2, 0, {"--topology=ring", "--evaluate"}).parameters(), kHidden + 33 * 2);
  EXPECT_THAT(out_, Contains(HasSubstr("in 2 classes: ant, bee")));
}

// Nothing said that files were passed over, and what the classes are.
TEST_F(ImageFolderJobTest, FilesThatArePassedOverAreCountedAndNamed) {
  for (const char* name : {"1.webp", "2.WEBP", "3.bmp", "notes"}) {
    std::ofstream(path() + "/train/ant/" + name) << "no image";
  }
  std::filesystem::create_directories(path() + "/train/.hidden");
  std::filesystem::copy(path() + "/train/Cat/x.jpg", path() + "/train/.hidden/x.jpg");
  std::filesystem::create_directory_symlink("..", path() + "/train/ant/up");
  std::filesystem::create_directory_symlink("../ant", path() + "/train/bee/there");
  std::filesystem::create_directory_symlink("../../bee", path() + "/train/ant/a/back");
  Train(1, 0, {"--epochs=1"});
  EXPECT_THAT(out_, Contains(HasSubstr("in 4 classes: .hidden, Cat, ant, bee")));
  EXPECT_THAT(out_, Contains(AllOf(HasSubstr("whose names do not end in .jpg, .jpeg or .png: "),
                                   HasSubstr(" .webp"), HasSubstr(" .bmp"),
                                   HasSubstr("torchvision's ImageFolder reads "))));
  EXPECT_THAT(out_, Contains(AllOf(HasSubstr("passed over 1 image of "),
                                   HasSubstr("outside of its class folders"))));
  EXPECT_THAT(out_, Contains(HasSubstr("that count as classes: .hidden")));
  // Loops of links end.
  EXPECT_THAT(out_,
              Contains(AllOf(HasSubstr("to folders above or to one that the class has already"),
                             HasSubstr(path() + "/train/"))));
}

// Flags that are for image folders alone were refused first, and a split's folder was said to lack
// a folder train.
TEST_F(ImageFolderJobTest, AnImageFolderThatIsGivenOtherwiseIsNamed) {
  const std::string meant = "; did you mean --data=imagefolder:" + path() + "?";
  for (const char* form : {"cifar10:", "text:"}) {
    ExpectRefused(With(Alone(path(), {}), {"--data=" + (form + path())}),
                  {"--data: expected ", "which holds class folders", meant});
  }
  ExpectRefused(With(Alone(path(), {}), {"--data=imagefolder=" + path()}), {meant});
  for (const char* split : {"/train", "/val/"}) {
    ExpectRefused(Alone(path() + split, {}), {split, "does not exist", meant});
  }
}

// A pipe that had an image's name held the job up for ever.
TEST_F(ImageFolderJobTest, WhatIsNoRegularFileIsRefusedByName) {
  ASSERT_EQ(mkfifo((path() + "/train/bee/pipe.jpg").c_str(), 0600), 0);
  ExpectRefused(Alone(path(), {}), {"/train/bee/pipe.jpg", "expected a regular file"});
  std::filesystem::remove(path() + "/train/bee/pipe.jpg");
  std::filesystem::create_symlink("/dev/zero", path() + "/val/bee/zero.png");
  ExpectRefused(Alone(path(), {"--evaluate"}), {"/val/bee/zero.png", "expected a regular file"});
  Train(1, 0, {"--epochs=1"});  // which does not use that split
}

TEST_F(ImageFolderJobTest, AllFilesThatCannotBeReadAreFoundBeforehand) {
  TestProgram whole(Alone(path(), {"--check_data"}));
  EXPECT_EQ(whole.Finish().code, 0);
  EXPECT_THAT(whole.err(), IsEmpty());
  EXPECT_THAT(whole.out(), Contains(HasSubstr("read 12 samples: 0 cannot be read")));

  Damage(path());
  ASSERT_EQ(mkfifo((path() + "/train/Cat/pipe.jpg").c_str(), 0600), 0);
  std::filesystem::create_symlink("nowhere", path() + "/train/Cat/gone.png");
  for (const char* threads : {"--loader_threads=1", "--loader_threads=4"}) {
    TestProgram damaged(Alone(path(), {"--check_data", threads}));
    EXPECT_EQ(damaged.Finish().code, 2);
    EXPECT_THAT(
        damaged.err(),
        ElementsAre(HasSubstr("train/Cat/gone.png cannot be read: No such file"),
                    HasSubstr("train/Cat/pipe.jpg is a pipe"),
                    HasSubstr("train/ant/a/deep/er/1.jpg is a damaged JPEG"),
                    HasSubstr("train/bee/2.jpg is neither a JPEG nor a PNG but HTML"),
                    HasSubstr("val/bee/wide.jpg is neither a JPEG nor a PNG, it is empty")));
    EXPECT_THAT(damaged.out(), Contains(HasSubstr("read 14 samples: 5 cannot be read")));
    for (const std::string& line : damaged.out()) EXPECT_THAT(line, Not(StartsWith("step ")));
  }
  // Pillow reads one with a warning, and so do we.
  std::filesystem::remove(path() + "/train/Cat/pipe.jpg");
  std::filesystem::remove(path() + "/train/Cat/gone.png");
  ASSERT_EQ(std::system(absl::StrCat("/usr/bin/python3 worker/data/testdata/make_images.py warned ",
                                     path(), "/train/Cat/warned.jpg")
                            .c_str()),
            0);
  TestProgram warned(Alone(path(), {"--check_data"}));
  EXPECT_EQ(warned.Finish().code, 2);
  EXPECT_THAT(warned.err(),
              Contains(AllOf(HasSubstr("train/Cat/warned.jpg"), HasSubstr("with a warning: "))));
  EXPECT_THAT(warned.out(), Contains(HasSubstr("3 cannot be read, 1 are read with a warning")));
}

// A checkpoint that was due was not written, as it was to be evaluated first: each restart trained the same
// steps again.
TEST_F(ImageFolderJobTest, ATestFileThatCannotBeReadCostsNoCheckpoint) {
  std::ofstream(path() + "/val/bee/wide.jpg", std::ios::trunc) << "no image";
  const std::vector<std::vector<std::string>> jobs = {
      {"--topology=ring", "--checkpoint_best"},
      {"--topology=ring", "--evaluate_every=1", "--ema_decay=0.9"},
      {"--topology=ring", "--zero=3", "--checkpoint_best"},
      {"--topology=ps", "--checkpoint_best"}};
  for (size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string kept = absl::StrCat(path(), "/kept", i);
    const std::vector<std::string> errors =
        ErrorsOf(Job(2, jobs[i][0] == "--topology=ps" ? 1 : 0,
                     With(jobs[i], {"--checkpoint=" + kept, "--checkpoint_every=1"})));
    EXPECT_THAT(errors, Contains(HasSubstr("val/bee/wide.jpg is neither a JPEG nor a PNG")));
    EXPECT_TRUE(std::filesystem::exists(kept + "/step_00000001/MANIFEST"));
  }
}

TEST_F(ImageFolderJobTest, DamagedFilesArePassedOverAlikeByAllRanksAndRestarts) {
  Damage(path());
  const std::vector<std::string> skip = {"--skip_damaged=2", "--topology=ring", "--evaluate"};
  const auto ring = Train(2, 0, skip);
  EXPECT_THAT(err_, Contains(AllOf(HasSubstr("/train/bee/2.jpg"), HasSubstr("of at most 2"))));
  EXPECT_EQ(Train(2, 0, With(skip, {"--loader_threads=3"})).params_sha256(), ring.params_sha256());
  EXPECT_EQ(Train(2, 1, With(skip, {"--topology=ps"})).params_sha256(), ring.params_sha256());
  // It stops in the midst of its second epoch, of two steps each.
  const std::vector<std::string> kept = {"--checkpoint=" + path() + "/kept", "--resume=auto"};
  Train(2, 0, With(With(skip, kept), {"--epochs=1", "--steps=3"}));
  EXPECT_EQ(Train(2, 0, With(With(skip, kept), {"--epochs=1", "--steps=6"})).params_sha256(),
            ring.params_sha256());

  TestProgram few(Alone(path(), {"--skip_damaged=1"}));
  EXPECT_EQ(few.Finish().code, 1);
  EXPECT_THAT(
      few.err(),
      Contains(HasSubstr("--skip_damaged: expected at most 1 damaged files, found one more")));
  ExpectRefused({"worker/worker", "--model=mlp", "--skip_damaged=1"},
                {"--skip_damaged: expected to be left out"});
}

// A job whose data had moved was refused, and one whose data were others was not.
TEST_F(ImageFolderJobTest, AResumedJobHasTheSameDataWhereverTheyAre) {
  const std::vector<std::string> kept = {"--checkpoint=" + path() + "/kept", "--resume=auto"};
  Train(1, 0, With(kept, {"--epochs=1", "--steps=2"}));
  const std::string copy = path() + "/copy";
  std::filesystem::create_directories(copy);
  std::filesystem::copy(path() + "/train", copy + "/train",
                        std::filesystem::copy_options::recursive);
  Train(1, 0, With(kept, {"--epochs=1", "--steps=4", "--data=imagefolder:" + copy + "/"}));
  EXPECT_THAT(out_, Contains(HasSubstr("after step 2")));
  Train(1, 0,
        With(kept, {"--epochs=1", "--steps=6", "--data=imagefolder:" + copy + "/../copy/./"}));
  EXPECT_THAT(out_, Contains(HasSubstr("after step 4")));

  std::filesystem::rename(copy + "/train/ant", copy + "/train/asp");
  ExpectRefused(With(Alone(copy, {}), With(kept, {"--steps=8"})),
                {"--data: expected imagefolder of 7 images in 3 classes (Cat, ant, bee)",
                 "found \"imagefolder of 7 images in 3 classes (Cat, asp, bee)"});
  ExpectRefused(
      With(With(Alone(copy, {}), kept), {"--steps=8", "--image_size=0", "--data=synthetic"}),
      {"expected"});

  // Weights alone may be evaluated on it, but whose classes these are is said.
  std::filesystem::copy(copy + "/train", copy + "/val", std::filesystem::copy_options::recursive);
  for (const std::string& data : {path(), copy}) {
    std::filesystem::remove_all(path() + "/val");
    std::filesystem::copy(path() + "/train", path() + "/val",
                          std::filesystem::copy_options::recursive);
    TestProgram evaluation(
        With(Alone(data, {}), {"--evaluate_only", "--resume=" + path() + "/kept"}));
    EXPECT_EQ(evaluation.Finish().code, 0);
    const auto other = Contains(AllOf(HasSubstr("(Cat, asp, bee)"), HasSubstr("(Cat, ant, bee)"),
                                      HasSubstr("outputs may stand for other classes")));
    std::vector<std::string> said = evaluation.out();
    for (const std::string& line : evaluation.err()) said.push_back(line);
    if (data == copy) {
      EXPECT_THAT(said, other);
    } else {
      EXPECT_THAT(said, Not(other));
    }
  }
}

// Two of ten classes that were exchanged were less than half of all files, and other names behind the
// first four of classes were not heeded in an evaluation.
TEST_F(ImageFolderJobTest, ExchangedClassesAndNamesBehindTheFirstAreFound) {
  const std::string data = path() + "/ten";
  for (int label = 0; label < 10; ++label) {
    for (const char* split : {"/train/", "/val/"}) {
      const std::string folder = absl::StrCat(data, split, "class", label);
      std::filesystem::create_directories(folder);
      for (int i = 0; i < 3; ++i) {
        const std::string image = absl::StrCat(folder, "/", i, ".jpg");
        std::filesystem::copy(path() + "/train/bee/2.jpg", image);
        std::ofstream(image, std::ios::app) << label << i;  // behind its end
      }
    }
  }
  const auto rename = [&data](const std::string& from, const std::string& to) {
    for (const char* split : {"/train/", "/val/"}) {
      std::filesystem::rename(data + split + from, data + split + to);
    }
  };
  const std::string kept = path() + "/kept";
  const std::vector<std::string> resumed =
      With(Alone(data, {}), {"--checkpoint=" + kept, "--resume=auto"});
  ASSERT_EQ(TestProgram(With(resumed, {"--steps=2"})).Finish().code, 0);
  rename("class7", "class");
  rename("class6", "class7");
  rename("class", "class6");
  ExpectRefused(With(resumed, {"--steps=4"}), {"; in 2 classes all files", "are exchanged"});
  // A class that was mended is a notice.
  rename("class6", "class");
  rename("class7", "class6");
  rename("class", "class7");
  for (int i = 0; i < 3; ++i) {
    std::ofstream(absl::StrCat(data, "/train/class5/", i, ".jpg"), std::ios::app) << "mended";
  }
  TestProgram mended(With(resumed, {"--steps=4"}));
  EXPECT_EQ(mended.Finish().code, 0);
  EXPECT_THAT(mended.out(), Contains(HasSubstr("3 are not as in ")));

  const auto evaluation = With(Alone(data, {}), {"--evaluate_only", "--resume=" + kept});
  const auto other = Contains(HasSubstr("outputs may stand for other classes"));
  TestProgram same(evaluation);
  EXPECT_EQ(same.Finish().code, 0);
  EXPECT_THAT(same.out(), Not(other));
  rename("class8", "class80");
  TestProgram renamed(evaluation);
  EXPECT_EQ(renamed.Finish().code, 0);
  EXPECT_THAT(renamed.out(), other);
}

// The worker waited for a thread that waited for the disk, and nobody heard why.
TEST_F(ImageFolderJobTest, ADiskThatDoesNotAnswerEndsTheJobWithTheFilesName) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's library must be the first that is loaded";
  std::filesystem::copy(path() + "/train/bee/2.jpg", path() + "/train/bee/hangs.jpg");
  const std::string shim = "LD_PRELOAD=" + std::filesystem::absolute("tests/odd_disk.so").string();
  TestProgram late(With({"/usr/bin/env", shim}, Alone(path(), {"--timeout=3s", "--epochs=9"})));
  EXPECT_EQ(late.Finish().code, 1);
  ASSERT_FALSE(late.err().empty());
  EXPECT_THAT(late.err().back(), AllOf(HasSubstr("/train/bee/hangs.jpg has been being read for"),
                                       HasSubstr("--timeout")));

  TestProgram asked(With({"/usr/bin/env", shim}, Alone(path(), {"--timeout=600s", "--epochs=9"})));
  asked.Await([&] { return !asked.err().empty(); });  // the notice that a step waits
  asked.Kill(SIGTERM);
  EXPECT_EQ(asked.Finish().code, 1);
  EXPECT_THAT(asked.err().back(),
              AllOf(HasSubstr("ended by a signal"), HasSubstr("/train/bee/hangs.jpg")));
}

// A checkpoint whose flags had bytes that are no UTF-8 could not be read again.
TEST_F(ImageFolderJobTest, PathsMayHaveAnyBytes) {
  const std::string folder = path() + "/\xff\xe4 \xc3\xa4";
  std::filesystem::create_directories(folder);
  std::filesystem::rename(path() + "/train", folder + "/train");
  std::filesystem::rename(folder + "/train/bee", folder + "/train/b\xe9");
  const std::vector<std::string> flags = {"--data=imagefolder:" + folder,
                                          "--checkpoint=" + folder + "/kept", "--resume=auto"};
  const auto metrics = Train(1, 0, With(flags, {"--epochs=1", "--steps=2"}));
  EXPECT_EQ(metrics.data(), "imagefolder:" + path() + "/\\xff\\xe4 \xc3\xa4");
  // As Python sorts names: a byte that is no character's is before U+E000.
  std::filesystem::rename(folder + "/train/ant", folder + "/train/\xef\xbc\xa1");
  std::filesystem::rename(folder + "/train/b\xe9", folder + "/train/\xff");
  Train(1, 0, {flags[0], "--epochs=1", "--steps=1"});
  EXPECT_THAT(out_, Contains(HasSubstr("in 3 classes: Cat, \\xff, \xef\xbc\xa1")));
  std::filesystem::rename(folder + "/train/\xff", folder + "/train/b\xe9");
  std::filesystem::rename(folder + "/train/\xef\xbc\xa1", folder + "/train/ant");
  Train(1, 0, With(flags, {"--epochs=1", "--steps=4"}));
  EXPECT_THAT(out_, Contains(HasSubstr("after step 2")));
}

}  // namespace
}  // namespace gradsync
