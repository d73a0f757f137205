// Writes checkpoints to the folder that is its argument, one after the other, until it is killed;
// says each file operation before it does it. For
// tests/checkpoint_kill_test.cc.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/watched_file_system.h"

namespace gradsync {
namespace {

absl::Status WriteForever(const std::string& path) {
  WatchedFileSystem files([](const std::string& call) {
    std::printf("%s\n", call.c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  });
  std::vector<std::string> damaged;
  const auto newest = FindNewestWhole(files, path, &damaged);
  CheckpointFolder folder(&files, path, /*keep=*/2);
  for (int64_t step = newest.ok() ? newest->step() + 1 : 1;; ++step) {
    absl::Status status = folder.Begin(step);
    if (status.ok()) status = folder.Add("weights", std::string(200000, 'w'));
    if (status.ok()) status = folder.Add("state", absl::StrCat(step));
    if (status.ok()) status = folder.Commit();
    if (!status.ok()) return status;
  }
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::fprintf(stderr, "test_writer: %s\n", gradsync::WriteForever(argv[1]).ToString().c_str());
  return 1;
}
