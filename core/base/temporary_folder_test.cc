#include "core/base/temporary_folder.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

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

}  // namespace
}  // namespace gradsync
