// Jobs on image folders, by real processes. data/testdata/make_images.py makes the images.

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/temporary_folder.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/worker_processes.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kSkip = 77;

class ImageFolderJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int status = std::system(
        absl::StrCat("/usr/bin/python3 data/testdata/make_images.py folder ", path()).c_str());
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
    options.on_line = [this](absl::string_view, absl::string_view line, bool) {
      out_.push_back(std::string(line));
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

  std::vector<std::string> out_;

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
  LocalJobOptions options = Job(2, 0, {"--topology=ring"});
  std::vector<std::string> errors;
  options.on_line = [&errors](absl::string_view, absl::string_view line, bool is_stderr) {
    if (is_stderr) errors.push_back(std::string(line));
  };
  const auto result = RunLocalJob(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 1);
  ASSERT_FALSE(errors.empty());
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(damaged));
}

}  // namespace
}  // namespace gradsync
