#include "core/program/version.h"

#include "absl/strings/str_cat.h"
#include "core/program/compiler_name.h"
#include "google/protobuf/stubs/common.h"
#include "gradsync/version.h"
#include "grpcpp/version_info.h"

namespace gradsync {

// Of core/program/build_stamp.cc, which Bazel compiles anew for each program.
extern const char kBuildCommit[];

namespace {

std::string Commit() {
  const absl::string_view commit = kBuildCommit;
  // Bazel's words for a build without --config=stamp.
  const bool known = !commit.empty() && commit != "0" && commit != "redacted";
  return known ? std::string(commit) : "unknown";
}

}  // namespace

std::string VersionText(absl::string_view program, absl::string_view libtorch) {
  return absl::StrCat(program, " of gradsync " GRADSYNC_VERSION "\ncommit ", Commit(),
                      libtorch.empty() ? "" : absl::StrCat("\nLibTorch ", libtorch), "\ngRPC ",
                      GRPC_CPP_VERSION_STRING, "\nProtocol Buffers ",
                      GOOGLE_PROTOBUF_VERSION / 1000000, ".", GOOGLE_PROTOBUF_VERSION / 1000 % 1000,
                      ".", GOOGLE_PROTOBUF_VERSION % 1000, "\ncompiler ", CompilerName(), "\n");
}

std::string VersionName() {
  return absl::StrCat("gradsync " GRADSYNC_VERSION ", commit ", Commit());
}

}  // namespace gradsync
