// Bare gRPC streams: what gRPC itself can carry. The yardstick for core/links/grpc_stream and all
// that is built on it.
//
// Raw byte buffers over gRPC's callback API, generic calls, no protobuf, no frames, no credits.
// What is sent are slices that point into memory of the exchange's size, never copied; what comes
// is counted and dropped. Channels and servers are tuned by core/links/grpc_channel_arguments, as
// ours are.
//
// The bytes of a stream in one step are fixed when it opens: the client's first message (HELLO)
// says what each side will send, and the server sends it back. In a step the client sends its
// bytes; a server that sends, too, begins when the first message of the step comes and does not
// wait for more.
#ifndef GRADSYNC_BENCHMARKS_NETWORK_BARE_STREAM_H_
#define GRADSYNC_BENCHMARKS_NETWORK_BARE_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradsync {

// Of one stream, the same in every step.
struct BareStreamBytes {
  int64_t to_server = 0;
  int64_t to_client = 0;
  int64_t message = 0;  // at most, in one message
};

// Called on gRPC's threads.
struct BareStreamEvents {
  // A stream is open: HELLO has gone round.
  std::function<void()> on_open;
  // One direction of one stream has ended a step: this end has received all bytes of it, or has
  // given all of its own to gRPC.
  std::function<void()> on_step;
  // A stream has closed.
  std::function<void(absl::Status)> on_closed;
};

// The connecting end of one stream. Thread-safe; nothing blocks.
class BareClient {
 public:
  virtual ~BareClient() = default;

  // Sends a step's bytes. Only when the last step has ended in both directions.
  virtual void SendStep() = 0;

  // Says that nothing more will be sent; on_closed follows. Must not be destroyed before that.
  virtual void Finish() = 0;
};

// `source` is what is sent, of bytes.to_server bytes, and must outlive the client, as all that
// `events` refer to. `connection` makes connections to one address distinct.
std::unique_ptr<BareClient> OpenBareStream(const std::string& address, int connection,
                                           const BareStreamBytes& bytes,
                                           absl::Span<const char> source,
                                           const BareStreamEvents& events);

// The accepting end of many streams. All send from the same memory.
class BareServer {
 public:
  // Blocks until all streams are closed.
  virtual ~BareServer() = default;

  virtual std::string address() const = 0;  // host:port
};

// `address` is host:port, port 0 for any. Errors: UNAVAILABLE when it cannot listen there.
absl::StatusOr<std::unique_ptr<BareServer>> StartBareServer(const std::string& address,
                                                            const BareStreamEvents& events);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_NETWORK_BARE_STREAM_H_
