#ifndef GRADSYNC_CORE_PROGRAM_GRPC_REFLECTION_H_
#define GRADSYNC_CORE_PROGRAM_GRPC_REFLECTION_H_

#include "absl/status/status.h"

namespace gradsync {

// gRPC servers that this process starts from here on describe the messages and services of the
// program to whoever asks (grpc.reflection.v1alpha). Only for main files: it holds for the whole
// process, and a program that merely links gRPC's library for it has it on. So the library is
// loaded here. Errors: INVALID_ARGUMENT naming the flag --reflection when it is not there.
absl::Status LoadGrpcReflection();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_GRPC_REFLECTION_H_
