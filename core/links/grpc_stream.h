// Streams over gRPC: between processes and machines.
//
// Each FrameStream is one bidirectional call of gradsync.proto.FrameLink on a TCP connection of its
// own. Payloads are handed to gRPC as slices that point at the sender's memory, and to the sink as
// the slices that gRPC received; neither side copies them. Frames that wait go several in a message
// where the stream is fast. Messages are ordinary protobuf, so a peer in any language can take part.
#ifndef GRADSYNC_CORE_LINKS_GRPC_STREAM_H_
#define GRADSYNC_CORE_LINKS_GRPC_STREAM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/grpc_health.h"
#include "core/links/frame_stream.h"

namespace gradsync {

struct GrpcLinkOptions {
  Credentials credentials = InsecureCredentials();

  // A connection on which the peer's host acknowledges nothing for this long is lost: the network is
  // cut, or the machine went dark. Which of the two it is only others can tell, so its streams end
  // with a suspicion (core/base/errors.h) then. A killed process is noticed at once without it.
  // Infinite: no connection is lost for this.
  absl::Duration failure_timeout = absl::InfiniteDuration();

  // One whose peer's process does not answer for this long is lost too, but not before four times
  // the failure timeout: whoever watches processes notices that one is stopped, and what others made
  // of it, earlier.
  absl::Duration stopped_timeout = absl::Seconds(40);

  // A connection to a listener on which there has been no call for about this long, or up to twice as
  // long, is closed. Members have a stream on each of theirs, and who asks for health connects again.
  absl::Duration idle_timeout = absl::Minutes(2);

  // Opens windows by what connections of this link carry, which costs processor time
  // (docs/internals/grpc_link.md): for messages above 64 KiB that go both ways at once, where the next window
  // of the one would wait behind the bytes of the other. Both ends want it.
  bool probe_bandwidth = false;

  // What streams that this link opens say of themselves. What those that it accepts say is for
  // their acceptor to judge.
  StreamProof proof;

  // What listeners of this link answer to who asks whether they serve; null: they know no such call.
  std::shared_ptr<GrpcHealth> health;

  // A message that a listener of this link is sent may have so many bytes, at least
  // kMostBytesTogether (frame_codec.h); -1: any number.
  int max_message_bytes = -1;
};

// Thread-safe. Sinks run on gRPC's few threads: one that waits for a peer may stop all streams of
// the process. A StreamListener's destructor must not run on such a thread. Proxies that the
// environment names are not used.
//
// Connect() waits until somebody accepts, and blocks for at most its deadline; frames may reach the
// sink before it returns. An acceptor that returns null refuses the stream: Connect() fails with
// UNAVAILABLE.
//
// How a stream ends: the connecting side's Cancel() cannot carry a reason, the peer sees
// UNAVAILABLE; send a FAILED frame and Finish() to tell it more. The accepting side's Cancel()
// carries code and message (of at most 2 KiB). When the peer does not take that in within a second,
// the connection is reset.
//
// Errors of Listen(): INVALID_ARGUMENT when the address is not "host:port", and those of
// CheckListener(); UNAVAILABLE when the port is taken or the address is not ours. Errors of Connect(): DEADLINE_EXCEEDED when nobody
// accepted in time; UNAVAILABLE when the stream was refused; UNIMPLEMENTED, UNAUTHENTICATED or what
// else the peer ended the call with. All name the address.
std::shared_ptr<StreamLink> NewGrpcLink(GrpcLinkOptions options = {});

// A listener without an address, to which others hand connections that they have accepted.
class GrpcConnections : public StreamListener {
 public:
  // A connected socket that does not block, of which nothing has been read; it is gRPC's from then on.
  // Thread-safe; must have returned before the destructor begins.
  virtual void Adopt(int descriptor) = 0;
};

// Errors: INVALID_ARGUMENT without a certificate to listen with.
absl::StatusOr<std::unique_ptr<GrpcConnections>> ServeGrpcConnections(
    const GrpcLinkOptions& options, StreamAcceptor acceptor);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_GRPC_STREAM_H_
