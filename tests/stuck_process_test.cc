// A worker that lives but gets nothing done any more is named by all others, within the failure
// timeout and a moment; those that merely wait for it are not.

#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/straggler.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/job_processes.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;

constexpr absl::Duration kFailureTimeout = absl::Seconds(3);
constexpr int kSkip = 77;
constexpr int kWorkers = 3;

// A random straggler whose first victim is rank 1, in a step from 4 to 40, and which makes it take
// as good as for ever: its training thread stands still in the middle of backward.
std::string StandStill() {
  for (int seed = 0; seed < 100000; ++seed) {
    const std::string text = absl::StrCat("random:", seed, ":0.02:1e9");
    const Straggler straggler = Straggler::Parse(text).value();
    int64_t first[kWorkers];
    for (int rank = 0; rank < kWorkers; ++rank) {
      first[rank] = 1;
      while (straggler.Factor(rank, first[rank]) == 1) ++first[rank];
    }
    if (first[1] >= 4 && first[1] <= 40 && first[1] < std::min(first[0], first[2])) return text;
  }
  return "";
}

class StuckProcessTest : public ::testing::Test {
 protected:
  LocalJobOptions Job(int servers, const std::vector<std::string>& flags) {
    LocalJobOptions options;
    options.worker_binary = "worker/worker";
    options.server_binary = "ps_server/ps_server";
    options.workers = kWorkers;
    options.servers = servers;
    const std::string timeout =
        absl::StrCat("--failure_timeout=", absl::FormatDuration(kFailureTimeout));
    options.server_flags = {timeout};
    options.worker_flags = With({timeout, "--model=mlp", "--threads=1"}, flags);
    // The stuck one must be killed.
    options.settle = absl::Seconds(2);
    options.grace = absl::Seconds(1);
    options.on_start = [this](absl::string_view process, int) {
      errors_.emplace(process, std::vector<std::string>());
    };
    options.on_line = [this](absl::string_view process, absl::string_view line, bool is_stderr) {
      if (is_stderr && !absl::EndsWith(line, " so far")) {  // those who wait say that
        errors_[std::string(process)].emplace_back(line);
        last_error_at_ = MonotonicTime::Now();
      } else {
        last_line_at_ = MonotonicTime::Now();
      }
    };
    return options;
  }

  void ExpectThatAllNameRank1(const LocalJobOptions& options) {
    const auto result = RunLocalJob(options);
    ASSERT_TRUE(result.ok()) << result.status();
    for (const auto& [process, lines] : errors_) {
      if (process == "worker 1") continue;
      EXPECT_THAT(lines, ElementsAre(ContainsRegex("^[a-z_]*: ABORTED: rank 1 stuck: ")))
          << "on " << process;
    }
    EXPECT_LT(last_error_at_ - last_line_at_, kFailureTimeout + absl::Seconds(2));
  }

  std::map<std::string, std::vector<std::string>> errors_;  // lines of stderr
  MonotonicTime last_error_at_;
  MonotonicTime last_line_at_;  // of stdout
};

TEST_F(StuckProcessTest, AWorkerThatStandsStillInAStepUnderServersIsNamed) {
  ExpectThatAllNameRank1(
      Job(2, {"--topology=ps", "--steps=1000000", "--log_every=1", "--straggler=" + StandStill()}));
}

// Nobody is judged in a first step, until the others have waited for it in vain.
TEST_F(StuckProcessTest, AWorkerThatStandsStillInItsFirstStepIsNamedAtTheEndOfPatience) {
  LocalJobOptions options = Job(0, {"--topology=ring", "--link=shm", "--steps=4", "--timeout=8s",
                                    "--log_every=1", "--straggler=1:1e9"});
  const auto result = RunLocalJob(options);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const char* worker : {"worker 0", "worker 2"}) {
    EXPECT_THAT(errors_[worker],
                ElementsAre(ContainsRegex("^worker: ABORTED: rank 1 stuck: .* in vain$")))
        << "on " << worker;
  }
}

TEST_F(StuckProcessTest, AWorkerThatStandsStillInAStepOfARingIsNamed) {
  ExpectThatAllNameRank1(Job(0, {"--topology=ring", "--link=shm", "--steps=1000000",
                                 "--log_every=1", "--straggler=" + StandStill()}));
}

// An image on a disk that does not answer: opening it lasts for ever.
TEST_F(StuckProcessTest, AWorkerThatStandsStillInTheEvaluationIsNamed) {
  const TemporaryFolder folder = TemporaryFolder::Create("stuck_process_test").value();
  const int status = std::system(
      absl::StrCat("/usr/bin/python3 worker/data/testdata/make_images.py folder ", folder.path())
          .c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == kSkip) GTEST_SKIP() << "needs python3-pil, which tools/setup installs";
  ASSERT_EQ(code, 0);
  std::vector<std::string> tests;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() + "/val")) {
    const bool image = entry.is_regular_file() && entry.path().extension() != ".eval";
    if (image) tests.push_back(entry.path());
  }
  std::sort(tests.begin(), tests.end());
  ASSERT_GT(tests.size(), 1u);
  // Rank r evaluates samples r, r + 3, ... Its place among the others stays the same.
  std::filesystem::path hangs = tests[1];
  hangs.replace_extension(".hangs" + hangs.extension().string());
  std::filesystem::rename(tests[1], hangs);
  const std::string shim = std::filesystem::absolute("tests/odd_disk.so").string();
  ASSERT_EQ(setenv("LD_PRELOAD", shim.c_str(), /*replace=*/1), 0);
  ExpectThatAllNameRank1(
      Job(0, {"--topology=ring", "--data=imagefolder:" + folder.path(), "--image_size=32",
              "--batch_size=2", "--epochs=2", "--evaluate", "--log_every=1"}));
  unsetenv("LD_PRELOAD");
}

}  // namespace
}  // namespace gradsync
