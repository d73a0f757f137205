// For programs that have gRPC inside themselves: the library would bring another one.
#include "core/base/errors.h"
#include "core/program/grpc_reflection.h"

namespace gradsync {

absl::Status LoadGrpcReflection() {
  return FlagError("reflection", "false in a build with gRPC inside the program", "true");
}

}  // namespace gradsync
