#include "tools/worker_flags.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/write_file.h"
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

}  // namespace
}  // namespace gradsync
