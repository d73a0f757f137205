// Streams of frames (core/links/frame_stream.h) over TCP connections of their own, one each, without
// gRPC (docs/internals/protocol.md).

#ifndef GRADSYNC_CORE_LINKS_TCP_STREAM_H_
#define GRADSYNC_CORE_LINKS_TCP_STREAM_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/links/frame_stream.h"

namespace gradsync {

struct TcpLinkOptions {
  // The secret, TLS, and whether to listen beyond this host without either.
  Credentials credentials = InsecureCredentials();

  // As GrpcLinkOptions has them (core/links/grpc_stream.h).
  absl::Duration failure_timeout = absl::InfiniteDuration();
  absl::Duration stopped_timeout = absl::Seconds(40);

  // A connection that a listener has accepted and on which no stream is opened for this long is
  // closed.
  absl::Duration opening_timeout = absl::Seconds(10);

  // What streams that this link opens say of themselves.
  StreamProof proof;

  // A frame that a listener of this link is sent may have so many bytes of payload.
  uint64_t max_payload_bytes = std::numeric_limits<uint64_t>::max();

  // Takes connections to a listener of this link whose first bytes are not this link's: a socket that
  // does not block and of which nothing has been read, which it owns from then on. Called on the
  // link's threads; must not wait. Null: such connections are refused.
  std::function<void(int descriptor)> others;

  // Threads that read, at most; each serves many connections. They start when there are connections, and
  // are shared by all links of the process that have as many.
  int threads = 2;

  // How long a thread that waits looks for what comes next, while its core is its own, before it sleeps:
  // as long as a wake-up may take. 0: not at all.
  absl::Duration spin = absl::Microseconds(50);
};

// Thread-safe. Sinks run on the link's threads, and on threads that wait for handles of its driver(): one
// that waits for a peer stops all streams of its thread. A StreamListener's destructor must not run
// there.
//
// A small frame is written by the thread that sends it, if no other thread writes on that stream; a
// large one by the link's thread, unless that is who sends it. Payloads are received into memory of
// their own, or, small ones, several into one.
//
// How a stream begins and ends: docs/internals/protocol.md. The accepting side's Cancel() carries code and
// message (of at most 2 KiB); a peer that does not take that in within half a second is cut off.
//
// Errors of Listen() and Connect(): as those of NewGrpcLink() (core/links/grpc_stream.h), but
// FAILED_PRECONDITION where something else than this link listens, or one that encrypts where this
// link does not; INVALID_ARGUMENT for a certificate or key that OpenSSL does not take.
std::shared_ptr<StreamLink> NewTcpLink(TcpLinkOptions options = {});

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_STREAM_H_
