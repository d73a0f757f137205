#include "ps_server/server_event.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(EventFileTest, EachEventIsALineOfItsNumbers) {
  const std::string path = testing::TempDir() + "/events";
  const absl::StatusOr<std::unique_ptr<EventFile>> file = EventFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  (*file)->Add({ServerEvent::Kind::kApplied, 0, 3, {1, 7}, 2});
  (*file)->Add({ServerEvent::Kind::kPulled, 0, 3, {1, 7}, 2});
  (*file)->Add({ServerEvent::Kind::kFinal, 5, 0, {0, 0}, 0});
  EXPECT_EQ((*file)->Close(), absl::OkStatus());
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  EXPECT_EQ(lines,
            (std::vector<std::string>{"applied 0 3 1 7 2", "pulled 0 3 1 7 2", "final 5 0 0 0 0"}));
}

TEST(EventFileTest, AFileThatCannotBeWrittenIsNamed) {
  const absl::Status status = EventFile::Create("/no/such/folder/events").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "/no/such/folder/events")) << status;
}

// The server waited for a reader, and no signal ended that.
TEST(EventFileTest, APipeThatNobodyReadsAndAFullDeviceAreRefused) {
  const std::string pipe = testing::TempDir() + "/event_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const absl::Status unread = EventFile::Create(pipe).status();
  EXPECT_TRUE(absl::StrContains(unread.message(), "/event_pipe\": a pipe that nobody reads"))
      << unread;
  EXPECT_TRUE(absl::IsInvalidArgument(EventFile::Create("/dev/full").status()));
  EXPECT_TRUE(EventFile::Create("/dev/null").ok());
}

}  // namespace
}  // namespace gradsync
