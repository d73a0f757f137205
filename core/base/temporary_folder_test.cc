#include "core/base/temporary_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(TemporaryFolderTest, ItGoesWithAllThatIsInItAndWithItsLastOwner) {
  std::optional<TemporaryFolder> first = TemporaryFolder::Create("some-").value();
  const TemporaryFolder other = TemporaryFolder::Create("some-").value();
  const std::string path = first->path();
  EXPECT_NE(path, other.path());
  EXPECT_THAT(path, testing::HasSubstr("/some-"));
  std::ofstream(path + "/file").close();
  {
    const TemporaryFolder last = *std::move(first);
    first.reset();
    EXPECT_TRUE(std::filesystem::exists(path + "/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));
}

class TemporaryFolderPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) unsetenv(name);
  }
  void TearDown() override { unsetenv("TMPDIR"); }
};

// An empty variable was an error, and the message named no folder.
TEST_F(TemporaryFolderPlaceTest, AnEmptyVariableMeansTmpAndABadOneIsNamed) {
  setenv("TMPDIR", "", 1);
  EXPECT_THAT(TemporaryFolder::Create("some-").value().path(), testing::StartsWith("/tmp/some-"));
  setenv("TMPDIR", testing::TempDir().c_str(), 1);
  EXPECT_THAT(TemporaryFolder::Create("some-").value().path(),
              testing::StartsWith(testing::TempDir()));
  setenv("TMPDIR", "/nope", 1);
  const absl::Status bad = TemporaryFolder::Create("some-").status();
  EXPECT_TRUE(absl::IsInvalidArgument(bad)) << bad;
  EXPECT_EQ(bad.message(),
            "TMPDIR: expected a folder that takes files, found \"/nope\": No such file or "
            "directory");
  setenv("TMPDIR", "/dev/null", 1);
  EXPECT_THAT(std::string(TemporaryFolder::Create("some-").status().message()),
              testing::HasSubstr("found \"/dev/null\": Not a directory"));
}

}  // namespace
}  // namespace gradsync
