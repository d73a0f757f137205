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

// A server held its step for a minute, though the workers had 6 seconds.
TEST(WorkerFlagsTest, ServersHaveTheTimeoutThatWorkersHave) {
  const std::string path = ::testing::TempDir() + "/timeout.yaml";
  ASSERT_TRUE(WriteFileAtomically(path, "timeout: 3s\n").ok());
  const auto of_servers = [&path](std::vector<std::string> words, bool file, bool given) {
    if (file) words.push_back("--config=" + path);
    const std::vector<std::string> flags = Read(words).TimeoutOfServers("1m", given);
    return flags.size() == 1 ? flags[0] : "";
  };
  EXPECT_EQ(of_servers({}, false, false), "--timeout=1m");
  EXPECT_EQ(of_servers({}, true, false), "--timeout=3s");
  EXPECT_EQ(of_servers({}, true, true), "--timeout=1m");
  for (const bool file : {false, true}) {
    for (const bool given : {false, true}) {
      EXPECT_EQ(of_servers({"--timeout=9s", "--timeout", "6s"}, file, given), "--timeout=6s");
    }
  }
}

TEST(WorkerFlagsTest, WhatALauncherGivesEachWorkerIsRefusedBehindTheDashes) {
  const auto check = [](const std::vector<std::string>& words, int servers) {
    return std::string(CheckNoneIsOfOneWorker(words, /*workers=*/2, servers).message());
  };
  for (const char* name : {"rank", "local_rank", "master", "port_file", "attempt"}) {
    EXPECT_EQ(check({"--steps=3", absl::StrCat("--", name, "=0")}, 0),
              absl::StrCat("--", name,
                           ": expected to be left out, as launch gives each worker its "
                           "own, found behind --"));
  }
  EXPECT_EQ(check({"-local-rank", "0"}, 0),
            "--local_rank: expected to be left out, as launch gives each worker its own, found "
            "behind --");
  EXPECT_EQ(
      check({"--num_servers=3"}, 1),
      "--num_servers: expected to be left out, as launch's --servers=1, before --, says it to "
      "each worker, found \"3\" behind --");
  EXPECT_EQ(check({"--world-size", "3"}, 1),
            "--world_size: expected to be left out, as launch's --workers=2, before --, says it to "
            "each worker, found \"3\" behind --");
  for (const int servers : {0, 1}) {
    EXPECT_EQ(check({"--servers=1"}, servers),
              "--servers: expected before --, as launch tells each worker where its servers are, "
              "found \"1\" behind --");
  }
  EXPECT_NE(check({"--servers=a:1"}, 1), "");
  EXPECT_NE(check({"--num_servers=1"}, 1), "");  // waited for a second one
  // What says the same, and what works.
  EXPECT_EQ(check({"--world_size=2", "--num_servers=0", "--run_id=a", "--interface=lo"}, 0), "");
  EXPECT_EQ(check({"--servers=a:1", "rank", "--steps=3"}, 0), "");
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
