// How many bytes go in one message of a stream.

#ifndef GRADSYNC_CORE_LINKS_MESSAGE_BUDGET_H_
#define GRADSYNC_CORE_LINKS_MESSAGE_BUDGET_H_

#include <algorithm>
#include <cstddef>

#include "absl/time/time.h"
#include "core/links/frame_codec.h"

namespace gradsync {

// gRPC hands over whole messages only, and each costs a round trip (docs/grpc_link.md). So frames
// that wait go together where the stream is fast, and one by one where the first would be held up
// by those behind it: a message has as many bytes as the stream lately moved in kMostTime, at most
// kMostBytesTogether. Arithmetic only; thread-compatible.
class MessageBudget {
 public:
  static constexpr absl::Duration kMostTime = absl::Milliseconds(2);

  // By what headers of frames whose payloads have the same size may differ.
  static constexpr size_t kHeaderSlack = 256;

  size_t bytes() const { return bytes_; }

  // A message of so many bytes has left after so long. One that was quick says only that one of
  // twice its frames may be tried, since most of what a small one takes is no matter of its size.
  void Written(size_t bytes, absl::Duration took) {
    if (took > kMostTime) {
      bytes_ =
          static_cast<size_t>(static_cast<double>(bytes) * absl::FDivDuration(kMostTime, took));
    } else {
      bytes_ = std::min(std::max(bytes_, 2 * bytes + kHeaderSlack), kMostBytesTogether);
    }
  }

 private:
  size_t bytes_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_MESSAGE_BUDGET_H_
