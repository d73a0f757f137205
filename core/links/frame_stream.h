// How bytes move between two processes (or two threads, in tests): an ordered stream of frames in
// each direction.
//
// A frame is a small header and, for data, a payload of many bytes. Rings and parameter servers are
// written against this interface alone; core/links/grpc_stream.h carries it over gRPC and
// core/links/in_process_stream.h within a process.

#ifndef GRADSYNC_CORE_LINKS_FRAME_STREAM_H_
#define GRADSYNC_CORE_LINKS_FRAME_STREAM_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/links/link_driver.h"
#include "proto/frame.pb.h"

namespace gradsync {

// What has to be done when lent memory comes back: a call that is made exactly once, when asked for,
// or at the latest when this object goes away. Two words, as gRPC keeps them for a slice that it
// sends, so that handing one on allocates nothing. Movable, thread-compatible.
class Release {
 public:
  using Function = void (*)(void*);

  Release() = default;

  // Calls `function(argument)`. Allocates nothing.
  Release(Function function, void* argument) : function_(function), argument_(argument) {}

  // Calls `callable()`, which is kept on the heap until then.
  template <typename F, typename = std::enable_if_t<!std::is_same<std::decay_t<F>, Release>::value>>
  Release(F&& callable)  // NOLINT: as a std::function, from what it calls
      : function_([](void* boxed) {
          const std::unique_ptr<std::decay_t<F>> owned(static_cast<std::decay_t<F>*>(boxed));
          (*owned)();
        }),
        argument_(new std::decay_t<F>(std::forward<F>(callable))) {}

  Release(Release&& other) noexcept
      : function_(std::exchange(other.function_, nullptr)), argument_(other.argument_) {}
  Release& operator=(Release&& other) noexcept {
    if (this == &other) return *this;
    Run();
    function_ = std::exchange(other.function_, nullptr);
    argument_ = other.argument_;
    return *this;
  }
  ~Release() { Run(); }

  explicit operator bool() const { return function_ != nullptr; }

  // Makes the call, if there is one that was not made yet.
  void Run() {
    if (const Function function = std::exchange(function_, nullptr)) function(argument_);
  }

  // For C interfaces: whoever takes the pair calls `first(second)` once. Null when there is nothing
  // to do.
  std::pair<Function, void*> Take() && { return {std::exchange(function_, nullptr), argument_}; }

 private:
  Function function_ = nullptr;
  void* argument_ = nullptr;
};

// Received payload: parts in order, not aligned, a part's end may split a float. The list of parts
// and their bytes live as long as `owner`.
struct Payload {
  absl::Span<const absl::Span<const char>> parts;
  std::shared_ptr<const void> owner;

  size_t size() const {
    size_t bytes = 0;
    for (absl::Span<const char> part : parts) bytes += part.size();
    return bytes;
  }

  // A copy in one piece, for what is small: messages, not gradients.
  std::string Flat() const {
    std::string bytes;
    for (absl::Span<const char> part : parts) bytes.append(part.data(), part.size());
    return bytes;
  }
};

// A payload whose bytes live as long as `bytes`.
inline Payload MakePayload(std::vector<absl::Span<const char>> parts,
                           std::shared_ptr<const void> bytes) {
  auto both = std::make_shared<
      const std::pair<std::vector<absl::Span<const char>>, std::shared_ptr<const void>>>(
      std::move(parts), std::move(bytes));
  return {both->first, both};
}

// A frame to send.
struct OutgoingFrame {
  proto::FrameHeader header;
  // Not copied: must stay valid and unchanged until `released` ran.
  absl::Span<const char> payload;
  // Runs on any thread when nobody reads the payload any more; also when the stream failed, and
  // then perhaps after OnClosed(). Must not wait, nor call into the stream. Give it two words
  // (Release) where frames are many.
  Release released;
  // Frames marked so overtake queued frames that are not; order is kept among equals.
  bool urgent = false;
};

// What one end hears. Calls for one stream come one at a time, in order; for different streams they
// may overlap. They run on threads of the link: they may compute and send, but must never wait for
// a peer.
class FrameSink {
 public:
  virtual ~FrameSink() = default;

  virtual void OnFrame(const proto::FrameHeader& header, Payload payload) = 0;

  // At the accepting end: the peer has finished, and its last frame was heard. A stream that is
  // lost may begin its end like this too, so whoever expected more waits a moment for OnClosed().
  virtual void OnPeerFinished() {}

  // The last call. OK after the peer finished in good order; otherwise UNAVAILABLE (lost; says what
  // is known), CANCELLED (cancelled here), DATA_LOSS (not a frame), or what the peer ended the
  // stream with.
  virtual void OnClosed(absl::Status status) = 0;
};

// What the end that opened a stream said about itself before the first frame.
struct StreamProof {
  std::string run;  // the id of its run
  std::string key;  // of its job; only whoever met the job's store has it

  bool empty() const { return run.empty() && key.empty(); }
};

// One end. Thread-safe; no method blocks. Kept alive by the link until OnClosed() returned.
class FrameStream {
 public:
  virtual ~FrameStream() = default;

  // Queues a frame. After Finish() or the stream's end the frame is dropped (and `released` runs).
  virtual void Send(OutgoingFrame frame) = 0;

  // Says that nothing more will be sent. The stream closes with OK when both ends have finished and
  // all frames arrived.
  virtual void Finish() = 0;

  // Ends the stream at once: this end closes with CANCELLED. Of the accepting end the peer sees the
  // code and message of `reason`; of the end that opened it UNAVAILABLE. Queued frames are dropped.
  virtual void Cancel(absl::Status reason) = 0;

  // At the accepting end: what the peer said of itself; known before a frame is read. Rings and
  // servers refuse a stream without it, so that only links for tests may leave it empty.
  virtual StreamProof proof() const { return {}; }
};

// Called for each stream that a peer opens, on a thread of the link; returns the sink that hears
// it, or null to refuse it: then nothing is read from it. Whoever has cancelled the stream before
// said why.
using StreamAcceptor =
    std::function<std::shared_ptr<FrameSink>(std::shared_ptr<FrameStream> stream)>;

// Accepts streams at an address. Destroying it cancels its streams and waits until all of them are
// closed.
class StreamListener {
 public:
  virtual ~StreamListener() = default;

  virtual std::string address() const = 0;  // as peers reach it, "host:port"
};

// Opens listeners and streams; one per kind of link. Thread-safe.
class StreamLink {
 public:
  virtual ~StreamLink() = default;

  // `address` is "host:port", port 0 for any free one. Errors: INVALID_ARGUMENT for an address
  // without a port; UNAVAILABLE when the port is taken or the address is not ours.
  virtual absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                                 StreamAcceptor acceptor) = 0;

  // Opens a stream. `connection` numbers parallel connections to one address: streams with
  // different numbers never share a TCP connection. Returns when the connection is up. Errors:
  // DEADLINE_EXCEEDED or UNAVAILABLE, naming the address; then the sink is not called.
  virtual absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address,
                                                               int connection,
                                                               std::shared_ptr<FrameSink> sink,
                                                               Deadline deadline) = 0;

  // What threads that wait for frames of this link may be lent to, as long as the link lives; null:
  // nothing, the link's own threads do all. Where there is one, a thread that waits calls sinks, and
  // sending a small frame costs little more than a system call.
  virtual std::shared_ptr<LinkDriver> driver() { return nullptr; }
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_FRAME_STREAM_H_
