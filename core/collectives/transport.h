// The seam below the collectives: ordered messages between the ranks of a group, each a piece of a
// call, over streams (stream_transport.h) or through memory (window_transport.h).

#ifndef GRADSYNC_CORE_COLLECTIVES_TRANSPORT_H_
#define GRADSYNC_CORE_COLLECTIVES_TRANSPORT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/collectives/fold.h"
#include "core/group/side_channel.h"

namespace gradsync {

// What a rank calls. It goes with every message, so that ranks which call different things notice.
struct CollectiveCall {
  enum What : uint8_t {
    kAllReduce,
    kBroadcast,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kBarrier,
    kLeave,
    kSend,  // the last
  };

  What what = kBarrier;
  ElementKind kind = ElementKind::kUint8;  // of a reduction, as is
  FoldOp op = FoldOp::kSum;                // this
  bool hello = false;                      // no bytes follow; it only says what is called
  int32_t root = 0;                        // of kBroadcast
  int64_t count = 0;  // elements of a reduction, each rank's of kReduceScatter; else bytes
  // Among this rank's collectives, from 1; of kSend, among those from one rank to another.
  uint64_t number = 0;
};

// A message that has come; its bytes lie in the transport's memory.
struct CallMessage {
  CollectiveCall call;
  ByteParts parts;

  size_t size() const {
    size_t bytes = 0;
    for (const absl::Span<const char> part : parts) bytes += part.size();
    return bytes;
  }
};

// Messages from one rank to another keep their order within a lane. What comes on kMail while this
// rank waits for something else is kept, so a Send() ends even if its receiver is not there yet, as
// long as it is in some call.
enum CallLane { kCollectives, kMail };
constexpr int kLanes = 2;

// One rank's end. One thread at a time, but for Fail(). Everything that waits ends at the call's
// deadline, with DEADLINE_EXCEEDED that names whom it waited for but does not begin with a name, or
// with what Fail() was called with.
class CallTransport {
 public:
  static constexpr int kAllOthers = -1;

  virtual ~CallTransport() = default;

  // Collective, once.
  virtual absl::Status Connect(SideChannel& channel, Deadline deadline) = 0;

  // The same from construction on. Whether ranks share memory: a message to all others then costs as
  // much as to one, and is best made in its place (Reserve()); otherwise what Send() gets is read
  // where it is.
  virtual bool shares_memory() const = 0;
  // Most bytes of a message.
  virtual size_t piece_bytes() const = 0;
  // Up to so many bytes it is best that each rank sends all that it has to all others at once.
  virtual size_t small_bytes() const = 0;
  // How many rounds of messages a rank should send before it takes those of the first.
  virtual int lead() const = 0;

  // A call begins, whose waits end at `deadline`.
  virtual void Begin(Deadline deadline) = 0;

  // Memory for the next message of the lane, of up to `bytes`, aligned to 64; waits for room.
  virtual absl::StatusOr<char*> Reserve(CallLane lane, size_t bytes) = 0;

  // Sends what was reserved, of which `bytes` are used, to a rank or to kAllOthers. Does not wait.
  virtual void Post(CallLane lane, int to, const CollectiveCall& call, size_t bytes) = 0;

  // Sends `bytes`. They must not change until Flush(), but for results that came of them: whoever sent
  // those has read them.
  virtual absl::Status Send(CallLane lane, int to, const CollectiveCall& call,
                            absl::Span<const char> bytes) = 0;

  // Waits for the next message of a rank, which is valid until Release(): one of each rank and lane at
  // a time.
  virtual absl::StatusOr<const CallMessage*> Receive(CallLane lane, int from) = 0;
  virtual void Release(CallLane lane, int from) = 0;

  // The call ends: all that was sent is the caller's again, and receivers will notice it.
  virtual absl::Status Flush() = 0;

  // All waits end with `status`, now and later; the first call counts. Thread-safe; never waits.
  virtual void Fail(const absl::Status& status) = 0;

  // After Fail(): waits, for some seconds at most, until nobody reads what was sent any more.
  virtual void Settle() = 0;

  // Ends in good order, when all ranks have said kLeave.
  virtual absl::Status Finish(Deadline deadline) = 0;

  // Ends all threads and connections: nothing is reported from here on.
  virtual void Close() = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_COLLECTIVES_TRANSPORT_H_
