// A process that writes checkpoints may be killed at any moment: the newest one is whole.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/test_program.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/file_system.h"

namespace gradsync {
namespace {

constexpr int kKills = 100;

TEST(CheckpointKillTest, TheNewestOneIsWholeAfterEachOfAHundredKills) {
  const TemporaryFolder temporary = TemporaryFolder::Create("checkpoint-kill-").value();
  const std::string path = temporary.path() + "/c";
  const std::unique_ptr<FileSystem> files = NewLocalFileSystem();
  int64_t newest = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    TestProgram writer({"worker/checkpoint/test_writer", path});
    // Each time after another number of file operations, of which a checkpoint has some twenty.
    const size_t operations = 1 + kill * 7 % 61;
    writer.Await([&] { return writer.out().size() >= operations; });
    writer.Kill(SIGKILL);
    ASSERT_EQ(writer.Finish().signal, SIGKILL);
    std::vector<std::string> damaged;
    const auto found = FindNewestWhole(*files, path, &damaged);
    // What is called a checkpoint is one.
    EXPECT_THAT(damaged, ::testing::ElementsAre()) << "after kill " << kill;
    ASSERT_TRUE(found.ok() || newest == 0) << "after kill " << kill << ": " << found.status();
    if (!found.ok()) continue;
    EXPECT_GE(found->step(), newest);
    newest = found->step();
  }
  EXPECT_GT(newest, kKills);
  EXPECT_TRUE(std::filesystem::exists(path + "/latest/weights"));
}

}  // namespace
}  // namespace gradsync
