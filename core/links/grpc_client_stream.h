// The end of a gRPC stream that Connect() opens. Private to core/links/grpc_stream.
#ifndef GRADSYNC_CORE_LINKS_GRPC_CLIENT_STREAM_H_
#define GRADSYNC_CORE_LINKS_GRPC_CLIENT_STREAM_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"
#include "core/links/silence_watch.h"
#include "grpcpp/channel.h"

namespace gradsync {

// Opens a stream on `channel`, which leads to `address`, as one that has `proof` and `secret`, which
// may be empty. Where the peer refuses what it shows of the secret, it asks for a new challenge and
// tries once more. Blocks until the peer has accepted, at most until the deadline. `watch`, if there
// is one, looks at it from then on. Errors: as StreamLink::Connect(); the sink is not called then.
absl::StatusOr<std::shared_ptr<FrameStream>> OpenClientStream(
    const std::string& address, std::shared_ptr<grpc::Channel> channel, const StreamProof& proof,
    const std::string& secret, SilenceWatch* watch, std::shared_ptr<FrameSink> sink,
    Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_GRPC_CLIENT_STREAM_H_
