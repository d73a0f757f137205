// The order in which a checkpoint reaches the disk, what is left after every file operation that a
// writer may have been killed at, and what a reader finds.

#include "worker/checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "core/base/temporary_folder.h"
#include "core/base/write_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/watched_file_system.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class CheckpointFolderTest : public ::testing::Test {
 protected:
  CheckpointFolderTest()
      : temporary_(TemporaryFolder::Create("checkpoints-").value()),
        path_(temporary_.path() + "/c") {}

  // Calls from the folder's view go to `calls`; the first `allowed` succeed.
  WatchedFileSystem Watched(int allowed, std::vector<std::string>* calls) const {
    return WatchedFileSystem([this, allowed, calls](const std::string& call) {
      calls->push_back(absl::StrReplaceAll(call, {{path_ + "/", ""}, {path_, "."}}));
      return static_cast<int>(calls->size()) > allowed ? absl::InternalError("killed here")
                                                       : absl::OkStatus();
    });
  }

  static std::string ContentOf(int64_t step) {
    return std::string(1000, static_cast<char>('a' + step % 26));
  }

  absl::Status WriteOne(FileSystem* files, int64_t step, int keep = 2,
                        std::vector<std::string>* warnings = nullptr) {
    CheckpointFolder folder(files, path_, keep, [warnings](absl::string_view line) {
      if (warnings != nullptr) warnings->push_back(std::string(line));
    });
    absl::Status status = folder.Begin(step);
    if (status.ok()) status = folder.Add("model.pt", ContentOf(step));
    if (status.ok()) status = folder.Add("state", absl::StrCat(step));
    return status.ok() ? folder.Commit() : status;
  }

  // The step of the newest whole checkpoint, whose files are looked at; -1: none.
  int64_t Newest() {
    std::vector<std::string> damaged;
    const auto found = FindNewestWhole(*real_, path_, &damaged);
    if (!found.ok()) return -1;
    EXPECT_EQ(found->Read(*real_, "model.pt").value(), ContentOf(found->step()));
    EXPECT_EQ(found->Read(*real_, "state").value(), absl::StrCat(found->step()));
    return found->step();
  }

  const TemporaryFolder temporary_;
  const std::string path_;
  const std::unique_ptr<FileSystem> real_ = NewLocalFileSystem();
};

TEST_F(CheckpointFolderTest, EverythingIsOnTheDiskBeforeItHasItsName) {
  std::vector<std::string> calls;
  WatchedFileSystem files = Watched(100, &calls);
  ASSERT_EQ(WriteOne(&files, 120), absl::OkStatus());
  EXPECT_THAT(
      calls,
      ElementsAre("make .", "make .writing_00000120", "write .writing_00000120/model.pt",
                  "sync .writing_00000120/model.pt", "write .writing_00000120/state",
                  "sync .writing_00000120/state", "write .writing_00000120/MANIFEST",
                  "sync .writing_00000120/MANIFEST", "sync .writing_00000120",
                  "rename .writing_00000120 to step_00000120", "sync .", "remove .link_latest",
                  "link .link_latest to step_00000120", "rename .link_latest to latest", "sync ."));
  EXPECT_EQ(real_->Read(path_ + "/latest/state").value(), "120");
}

TEST_F(CheckpointFolderTest, WhereverAWriterStopsTheNewestWholeOneIsThere) {
  ASSERT_EQ(WriteOne(real_.get(), 1), absl::OkStatus());
  ASSERT_EQ(WriteOne(real_.get(), 2), absl::OkStatus());
  int64_t newest = 2;
  int stops = 0;
  for (;; ++stops) {
    std::vector<std::string> calls;
    WatchedFileSystem files = Watched(stops, &calls);
    const absl::Status written = WriteOne(&files, newest + 1);
    const int64_t found = Newest();
    ASSERT_TRUE(found == newest || found == newest + 1) << "stopped after " << stops;
    newest = found;
    if (static_cast<int>(calls.size()) <= stops) {
      EXPECT_EQ(written, absl::OkStatus());
      break;
    }
    EXPECT_TRUE(std::filesystem::exists(path_ + "/latest/model.pt")) << stops;
  }
  EXPECT_GT(stops, 15);
  // What was left on the way is gone.
  ASSERT_EQ(WriteOne(real_.get(), newest + 1), absl::OkStatus());
  EXPECT_EQ(real_->List(path_).value().size(), 3u);
}

TEST_F(CheckpointFolderTest, TheNewestStayAndTheBest) {
  for (int64_t step : {1, 2, 3, 4, 5}) {
    ASSERT_EQ(WriteOne(real_.get(), step), absl::OkStatus());
    CheckpointFolder folder(real_.get(), path_, 2);
    if (step != 2) continue;
    folder.SetBest(2);
  }
  EXPECT_THAT(real_->List(path_).value(),
              ElementsAre("best", "latest", "step_00000002", "step_00000004", "step_00000005"));
  EXPECT_EQ(real_->ReadLink(path_ + "/latest").value(), "step_00000005");
  EXPECT_EQ(real_->ReadLink(path_ + "/best").value(), "step_00000002");
}

// A folder that could not be removed, such as one on NFS of which a file is open, failed the job.
TEST_F(CheckpointFolderTest, OldOnesThatCannotBeRemovedAreToldAndFailNothing) {
  WatchedFileSystem files([](const std::string& call) {
    return absl::StartsWith(call, "remove ") && absl::StrContains(call, ".removing_")
               ? absl::PermissionDeniedError("cannot remove it")
               : absl::OkStatus();
  });
  std::vector<std::string> warnings;
  for (int64_t step : {1, 2, 3}) {
    ASSERT_EQ(WriteOne(&files, step, /*keep=*/1, &warnings), absl::OkStatus());
    EXPECT_EQ(Newest(), step);
  }
  // The first one, the first one again at the next begin, the second one.
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("cannot remove it"), HasSubstr("cannot remove it"),
                                    HasSubstr("cannot remove it")));
  ASSERT_EQ(WriteOne(real_.get(), 4, /*keep=*/1), absl::OkStatus());
  EXPECT_THAT(real_->List(path_).value(), ElementsAre("latest", "step_00000004"));
}

// A writer that was killed between a checkpoint and its links left them at other ones for good.
TEST_F(CheckpointFolderTest, LinksThatAKilledWriterDidNotSetAreSetByWhoGoesOn) {
  const auto expect_links = [this](const std::string& latest, const std::string& best) {
    EXPECT_EQ(real_->ReadLink(path_ + "/latest").value(), latest);
    EXPECT_EQ(real_->ReadLink(path_ + "/best").value(), best);
  };
  CheckpointFolder folder(real_.get(), path_, 2);
  EXPECT_EQ(folder.RestoreLinks(1, 1), absl::OkStatus());  // no folder, nothing to do
  ASSERT_EQ(WriteOne(real_.get(), 1), absl::OkStatus());
  ASSERT_EQ(WriteOne(real_.get(), 2), absl::OkStatus());
  folder.SetBest(1);
  std::vector<std::string> calls;
  WatchedFileSystem killed = Watched(11, &calls);
  ASSERT_EQ(WriteOne(&killed, 3), absl::OkStatus());
  ASSERT_EQ(calls[11], "remove .link_latest");
  ASSERT_EQ(Newest(), 3);
  expect_links("step_00000002", "step_00000001");
  ASSERT_EQ(folder.RestoreLinks(3, 3), absl::OkStatus());
  expect_links("step_00000003", "step_00000003");
  // Those of what is somewhere else, or was removed, stay.
  ASSERT_EQ(folder.RestoreLinks(7, 6), absl::OkStatus());
  ASSERT_EQ(folder.RestoreLinks(3, 0), absl::OkStatus());
  expect_links("step_00000003", "step_00000003");
}

// On a file system without symbolic links, or without a rename over what is there, such as SMB's and
// exFAT, a job ended at its first checkpoint.
TEST_F(CheckpointFolderTest, WithoutSymbolicLinksFilesNameTheNewestAndTheBest) {
  for (const char* call : {"rename ", "none"}) {
    ASSERT_EQ(real_->Remove(path_), absl::OkStatus());
    WatchedFileSystem files([&](const std::string& what) -> absl::Status {
      if (absl::StartsWith(what, "link ")) return absl::PermissionDeniedError("no links");
      const size_t to = what.find(" to ");
      const bool over = to != std::string::npos && std::filesystem::exists(what.substr(to + 4));
      if (absl::StartsWith(what, call) && over) return absl::AlreadyExistsError("it is there");
      return absl::OkStatus();
    });
    std::vector<std::string> warnings;
    CheckpointFolder folder(&files, path_, 1,
                            [&](absl::string_view line) { warnings.emplace_back(line); });
    ASSERT_EQ(folder.Probe(), absl::OkStatus());
    for (int64_t step : {1, 2, 3}) {
      ASSERT_EQ(folder.Begin(step), absl::OkStatus());
      ASSERT_EQ(folder.Add("model.pt", ContentOf(step)), absl::OkStatus());
      ASSERT_EQ(folder.Add("state", absl::StrCat(step)), absl::OkStatus());
      ASSERT_EQ(folder.Commit(), absl::OkStatus());
      if (step == 1) folder.SetBest(1);
      EXPECT_EQ(Newest(), step);
    }
    EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("no symbolic links"), HasSubstr(path_))));
    EXPECT_THAT(real_->List(path_).value(),
                ElementsAre("best", "latest", "step_00000001", "step_00000003"));
    EXPECT_EQ(real_->Read(path_ + "/latest").value(), "step_00000003\n");
    EXPECT_EQ(FollowLink(*real_, path_ + "/latest"), path_ + "/step_00000003");
    EXPECT_EQ(FollowLink(*real_, path_ + "/best/"), path_ + "/step_00000001");
    EXPECT_EQ(FollowLink(*real_, path_ + "/step_00000003"), path_ + "/step_00000003");
  }
}

// Two jobs on one folder removed each other's files.
TEST(FolderLockTest, TheSecondIsToldWhoHasItAndTheNextOneGetsIt) {
  const TemporaryFolder temporary = TemporaryFolder::Create("lock-").value();
  const std::string path = temporary.path() + "/not/there";
  {
    const auto first = FolderLock::Take(path, "job 1");
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(FolderLock::Take(path, "job 2").status(),
              absl::FailedPreconditionError("in use by job 1"));
  }
  EXPECT_TRUE(FolderLock::Take(path, "job 3").ok());
  EXPECT_FALSE(FolderLock::Take(path + "/.lock", "job 4").ok());  // which is no folder
}

// What it names was overwritten.
TEST(FolderLockTest, ALinkInItsPlaceIsNotFollowed) {
  const TemporaryFolder temporary = TemporaryFolder::Create("lock-").value();
  const std::string other = temporary.path() + "/other";
  ASSERT_EQ(WriteFileAtomically(other, "kept"), absl::OkStatus());
  const std::string link = temporary.path() + "/.lock";
  ASSERT_EQ(symlink("other", link.c_str()), 0);
  EXPECT_EQ(FolderLock::Take(temporary.path(), "job").status(),
            absl::FailedPreconditionError("expected a file of its own at " + link +
                                          ", found a symbolic link"));
  EXPECT_EQ(NewLocalFileSystem()->Read(other).value(), "kept");
}

// What could not be done was found at the first checkpoint, after hours of training.
TEST_F(CheckpointFolderTest, AProbeMeetsWhateverACheckpointWouldMeet) {
  std::vector<std::string> calls;
  WatchedFileSystem good = Watched(100, &calls);
  CheckpointFolder folder(&good, path_, 1);
  ASSERT_EQ(folder.Probe(), absl::OkStatus());
  EXPECT_THAT(real_->List(path_).value(), ElementsAre());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (absl::StartsWith(calls[i], "link ")) continue;
    std::vector<std::string> again;
    WatchedFileSystem files = Watched(static_cast<int>(i), &again);
    EXPECT_FALSE(CheckpointFolder(&files, path_, 1).Probe().ok()) << calls[i];
  }
  ASSERT_EQ(folder.Probe(), absl::OkStatus());  // removes what those have left
  EXPECT_THAT(real_->List(path_).value(), ElementsAre());
}

TEST_F(CheckpointFolderTest, ADamagedOneIsNamedAndTheOneBeforeIsTaken) {
  for (const char* file : {"model.pt", "MANIFEST"}) {
    for (const char* damage : {"cut", "change", "remove"}) {
      const int64_t step = Newest() < 0 ? 1 : Newest() + 2;
      ASSERT_EQ(WriteOne(real_.get(), step), absl::OkStatus());
      ASSERT_EQ(WriteOne(real_.get(), step + 1), absl::OkStatus());
      const std::string path = absl::StrCat(path_, "/latest/", file);
      std::string bytes = real_->Read(path).value();
      if (damage == std::string("cut")) bytes.pop_back();
      if (damage == std::string("change")) bytes[bytes.size() / 2] ^= 1;
      ASSERT_EQ(real_->Write(path, bytes), absl::OkStatus());
      if (damage == std::string("remove")) {
        ASSERT_EQ(real_->Remove(path), absl::OkStatus());
      }
      std::vector<std::string> damaged;
      const auto found = FindNewestWhole(*real_, path_, &damaged);
      ASSERT_TRUE(found.ok()) << file << " " << damage << ": " << found.status();
      EXPECT_EQ(found->step(), step);
      ASSERT_EQ(damaged.size(), 1u);
      EXPECT_THAT(damaged[0], HasSubstr(file));
      // It is written again in the place of the damaged one.
      ASSERT_EQ(WriteOne(real_.get(), step + 1), absl::OkStatus());
      EXPECT_EQ(Newest(), step + 1);
    }
  }
}

TEST_F(CheckpointFolderTest, ADamagedManifestSaysWhere) {
  const std::string begin = "# gradsync checkpoint, step 7\n# 3 bytes\n";
  const std::string line = std::string(64, '0') + "  ";
  const std::pair<std::string, size_t> damages[] = {
      {"", 0},
      {"# gradsync checkpoint, step -7\n# end, 0 files\n", 0},
      {"# gradsync checkpoint, step 7\n# x bytes\n" + line + "a\n# end, 1 files\n", 30},
      {begin + line + "\n# end, 1 files\n", begin.size()},
      {begin + line + "..\n# end, 1 files\n", begin.size()},
      {begin + line + "a/b\n# end, 1 files\n", begin.size()},
      {begin + line + "a\n# end, 2 files\n", begin.size() + line.size() + 2},
      {begin + line + "a\n# end, 1 fi", begin.size() + line.size() + 2},
  };
  ASSERT_EQ(real_->MakeFolder(path_), absl::OkStatus());
  for (const auto& [text, at] : damages) {
    ASSERT_EQ(real_->Write(path_ + "/MANIFEST", text), absl::OkStatus());
    const absl::Status status = Checkpoint::Open(*real_, path_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), EndsWith(absl::StrCat(" at byte ", at))) << text;
  }
}

TEST_F(CheckpointFolderTest, NoFolderHasNoCheckpoints) {
  EXPECT_EQ(Newest(), -1);
  EXPECT_TRUE(CheckpointSteps(*real_, path_).value().empty());
}

TEST_F(CheckpointFolderTest, AManifestIsWhatSha256sumReads) {
  ASSERT_EQ(WriteOne(real_.get(), 3), absl::OkStatus());
  const std::string command =
      absl::StrCat("cd ", path_, "/latest && sha256sum --check --strict --quiet MANIFEST");
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace gradsync
