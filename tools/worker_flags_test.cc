#include "tools/worker_flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/write_file.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

WorkerFlags Read(const std::vector<std::string>& words) {
  const absl::StatusOr<WorkerFlags> flags = ReadWorkerFlags(words);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return flags.ok() ? *flags : WorkerFlags();
}

TEST(WorkerFlagsTest, RanksEndTogetherUnlessTheyTrainByThemselves) {
  EXPECT_FALSE(Read({}).Synchronised(0));
  EXPECT_TRUE(Read({}).Synchronised(1));
  EXPECT_TRUE(Read({"--topology=ring"}).Synchronised(0));
  EXPECT_TRUE(Read({"--topology", "ps"}).Synchronised(0));
  EXPECT_FALSE(Read({"--topology=ring", "--topology=local"}).Synchronised(0));
  EXPECT_FALSE(Read({"--topology=local"}).Synchronised(1));
  EXPECT_TRUE(Read({"--mesh=pipeline=2"}).Synchronised(0));
  EXPECT_TRUE(Read({"--mesh=tensor=2", "--topology=local"}).Synchronised(0));
}

TEST(WorkerFlagsTest, WordsWinOverTheFile) {
  const std::string path = ::testing::TempDir() + "/job.yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "topology: ring\nfailure_timeout: 3s\n").ok());
  const WorkerFlags flags = Read({"--config=" + path});
  EXPECT_TRUE(flags.Synchronised(0));
  EXPECT_EQ(flags.FailureTimeout(), absl::Seconds(3));
  const WorkerFlags other = Read({"--config=" + path, "--topology=local", "--failure_timeout=4s"});
  EXPECT_FALSE(other.Synchronised(0));
  EXPECT_EQ(other.FailureTimeout(), absl::Seconds(4));
}

// `yes` reached the workers, and their servers asked for a secret.
TEST(WorkerFlagsTest, ServersAreInsecureWhereWorkersAreWhateverYamlsWordForIt) {
  const std::string path = ::testing::TempDir() + "/insecure.yaml";
  const std::vector<std::string> given = {"--insecure"};
  for (const char* word : {"true", "True", "yes", "on", "1", "Y"}) {
    ASSERT_TRUE(WriteFileAtomically(path, absl::StrCat("insecure: ", word, "\n")).ok());
    EXPECT_EQ(Read({"--config=" + path}).SecurityOfServers(), given) << word;
    EXPECT_EQ(Read({absl::StrCat("--insecure=", word)}).SecurityOfServers(), given) << word;
    EXPECT_TRUE(Read({"--config=" + path, "--noinsecure"}).SecurityOfServers().empty()) << word;
  }
  for (const char* word : {"false", "no", "off", "0"}) {
    ASSERT_TRUE(WriteFileAtomically(path, absl::StrCat("insecure: ", word, "\n")).ok());
    EXPECT_TRUE(Read({"--config=" + path}).SecurityOfServers().empty()) << word;
  }
}

TEST(WorkerFlagsTest, FlagsOfTheLauncherBehindTheDashesAreToldWhereTheyBelong) {
  const std::vector<FlagRecord> own = {{"workers", "1", "default"}, {"timeout", "1m", "default"}};
  EXPECT_TRUE(
      CheckNoneIsOwn({"--timeout=2s", "--steps=3", "workers", "--loader_threads"}, own).ok());
  for (const char* word : {"--workers=2", "-workers", "--workers"}) {
    EXPECT_EQ(CheckNoneIsOwn({"--steps=3", word}, own).message(),
              "--workers: expected before --, as it is no flag of the workers, found behind it");
  }
}

TEST(WorkerFlagsTest, FlagsBehindTheDashesAreTheWorkersButNotWhoItIs) {
  const std::vector<std::string> flags = FlagsBehindDashes();
  EXPECT_EQ(std::count(flags.begin(), flags.end(), "topology"), 1);
  EXPECT_EQ(std::count(flags.begin(), flags.end(), "steps"), 1);
  EXPECT_EQ(std::count(flags.begin(), flags.end(), "rank"), 0);
  EXPECT_EQ(std::count(flags.begin(), flags.end(), "world_size"), 0);
}

}  // namespace
}  // namespace gradsync
