#include "tools/runfiles.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradsync {
namespace {

constexpr absl::string_view kTree = ".runfiles";
constexpr absl::string_view kWorkspace = "gradsync";

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

}  // namespace

absl::StatusOr<std::string> FindRunfile(absl::string_view argv0, absl::string_view path) {
  std::vector<std::string> folders;
  // A test that runs the program calls it inside the test's own tree, which has its data too.
  const size_t inside = argv0.rfind(absl::StrCat(kTree, "/"));
  if (inside != absl::string_view::npos) {
    folders.push_back(absl::StrCat(argv0.substr(0, inside), kTree, "/", kWorkspace));
  }
  // `bazel run` and `bazel test` start programs in their runfiles.
  std::error_code error;
  const std::string current = std::filesystem::current_path(error).string();
  if (current.find(std::string(kTree) + "/") != std::string::npos) folders.push_back(current);
  const std::string own = OwnPath();
  folders.push_back(absl::StrCat(argv0, kTree, "/", kWorkspace));
  folders.push_back(absl::StrCat(own, kTree, "/", kWorkspace));
  // From bazel-bin/PACKAGE/PROGRAM to bazel-bin.
  folders.push_back(std::filesystem::path(own).parent_path().parent_path().string());
  for (const std::string& folder : folders) {
    const std::string candidate = absl::StrCat(folder, "/", path);
    if (access(candidate.c_str(), R_OK) == 0) return candidate;
  }
  return absl::NotFoundError(
      absl::StrCat("cannot find ", path, " in ", absl::StrJoin(folders, ", ")));
}

}  // namespace gradsync
