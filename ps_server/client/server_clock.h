// What one server's clock shows, seen from here, and what it recorded.

#ifndef GRADSYNC_PS_SERVER_CLIENT_SERVER_CLOCK_H_
#define GRADSYNC_PS_SERVER_CLIENT_SERVER_CLOCK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Asks a server for its clock some times, and for what it recorded last. The answer that came
// soonest counts: the server read its clock somewhere between question and answer, so the middle is
// wrong by at most half of the time between them. Not thread-safe: one question at a time.
class ServerClock {
 public:
  // The next question, to be sent now.
  OutgoingFrame Ask();

  // The answer to it. When it was the last: the server's proto::ProcessTrace with the offset to
  // this process' clock filled in, serialised. Else nothing: ask again.
  // Errors: INVALID_ARGUMENT for what is no such message, or was not asked for.
  absl::StatusOr<absl::optional<std::string>> Answer(absl::string_view bytes);

 private:
  static constexpr int kClocks = 8;

  int asked_ = 0;
  int answered_ = 0;
  int64_t asked_ns_ = 0;
  int64_t offset_ns_ = 0;
  int64_t error_ns_ = INT64_MAX;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_SERVER_CLOCK_H_
