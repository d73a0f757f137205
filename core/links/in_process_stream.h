// Streams between threads of one process: of a worker and the server beside it (NewNearLink()), and in
// tests, since what rings and parameter servers do must not depend on gRPC.
//
// The link can be as unkind as a real one may be. Frames arrive on a thread of the link, one thread per
// end of a stream, never on the sender's. A payload is not copied: the receiver reads the sender's
// memory, and `released` runs when the receiver drops Payload::owner, so that a buffer reused too
// early, or an owner kept too long, shows at once. Options cut payloads into odd parts and let
// streams overtake each other.

#ifndef GRADSYNC_CORE_LINKS_IN_PROCESS_STREAM_H_
#define GRADSYNC_CORE_LINKS_IN_PROCESS_STREAM_H_

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "core/links/frame_stream.h"

namespace gradsync {

struct InProcessLinkOptions {
  // Cuts payloads into several parts, most of them not a multiple of four bytes: floats are split,
  // and not aligned.
  bool split_payloads = false;
  // Before some of the frames a delivery thread pauses for up to this long: streams overtake each
  // other (the order within a stream stays). Zero: never.
  absl::Duration max_delay = absl::ZeroDuration();
  // What streams say of themselves (FrameStream::proof()).
  StreamProof proof;
  // Of cuts and pauses. The same seed gives each stream the same cuts and pauses, in the order of
  // Connect() calls.
  uint64_t seed = 0;
};

// Addresses belong to the returned link alone: "host:port" with any host, and port 0 for a free
// one. All threads that are to reach each other share it. Thread-safe; Connect() blocks until
// somebody listens at the address, at most until its deadline. A StreamListener's destructor must
// not run on a thread of the link.
//
// As with gRPC, an end that was opened by Connect() cannot say why it cancels: its peer sees
// UNAVAILABLE. An end that was accepted can. An acceptor that returns null refuses the stream:
// Connect() fails with UNAVAILABLE.
//
// Errors of Listen(): INVALID_ARGUMENT when the address is not "host:port"; UNAVAILABLE when the
// port is taken.
std::shared_ptr<StreamLink> NewInProcessLink(InProcessLinkOptions options = {});

// A link that keeps streams between two ends of one process out of the network.

// As `far`, but for Connect() to an address at which a listener of this very link listens: such a
// stream is one of NewInProcessLink(), whose receiver reads the sender's memory. It
// says `proof` of itself, as those that `far` opens should. Listeners are reached by other
// processes over `far`, under the same address. Thread-safe.
std::shared_ptr<StreamLink> NewNearLink(std::shared_ptr<StreamLink> far, StreamProof proof);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_IN_PROCESS_STREAM_H_
