// Streams that have come to a server and have not been admitted to its run: workers whose hello is on
// its way, and strangers. They are counted, and their time is limited.

#ifndef GRADSYNC_PS_SERVER_GUESTS_H_
#define GRADSYNC_PS_SERVER_GUESTS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Not thread-safe. Keeps no stream alive.
class Guests {
 public:
  // Enough for all streams of a large job at once.
  static constexpr size_t kMost = 1 << 14;

  // Errors: RESOURCE_EXHAUSTED when there are kMost guests already.
  absl::Status Enter(const std::shared_ptr<FrameStream>& stream);

  // The stream was admitted, or is closed.
  void Leave(const FrameStream* stream);

  // Takes out and returns those that came `patience` ago or earlier.
  std::vector<std::shared_ptr<FrameStream>> TakeLate(absl::Duration patience);

 private:
  struct Guest {
    const FrameStream* stream;
    std::weak_ptr<FrameStream> alive;
    MonotonicTime since;
  };

  std::vector<Guest> guests_;  // in the order in which they came
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_GUESTS_H_
