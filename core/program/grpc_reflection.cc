#include "core/program/grpc_reflection.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"
#include "grpcpp/grpcpp.h"

namespace gradsync {

absl::Status LoadGrpcReflection() {
  // Of the very version that is linked: its objects are that one's.
  const std::vector<std::string> version = absl::StrSplit(grpc::Version(), '.');
  const std::string library = absl::StrCat("libgrpc++_reflection.so.", version[0], ".",
                                           version.size() > 1 ? version[1] : "");
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return absl::OkStatus();
  return FlagError("reflection", absl::StrCat("false where ", library, " is not installed"),
                   "true");
}

}  // namespace gradsync
