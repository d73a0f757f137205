// What comes before a stream where the job has a secret. Private to core/links/grpc_stream.

#ifndef GRADSYNC_CORE_LINKS_GRPC_CHALLENGE_H_
#define GRADSYNC_CORE_LINKS_GRPC_CHALLENGE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/secret_proof.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/async_generic_service.h"

namespace gradsync {

// The path of the method that gives a challenge, and the metadata in which the proof travels.
constexpr char kChallengeMethod[] = "/gradsync.proto.Door/Challenge";
constexpr char kProofMetadata[] = "gradsync-proof";

// Gets a challenge from the peer at `address`, to which `channel` leads, and answers it. Waits until
// somebody listens there. Must not run on a thread of gRPC. Errors: DEADLINE_EXCEEDED, and what the
// peer says; with the address.
absl::StatusOr<std::string> MakeProof(const std::string& address,
                                      const std::shared_ptr<grpc::Channel>& channel,
                                      const std::string& secret, Deadline deadline);

// Why no connection came about, in gRPC's words: "connection refused", "certificate has expired".
// Empty when there is one. Waits for a moment. Must not run on a thread of gRPC.
std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel);

// The peer's side: answers a call of kChallengeMethod and deletes itself.
grpc::ServerGenericBidiReactor* NewChallengeCall(ProofChecker* checker);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_GRPC_CHALLENGE_H_
