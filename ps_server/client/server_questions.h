// What workers ask of a server beside the exchange: where it runs, what its clock shows and what it
// recorded.

#ifndef GRADSYNC_PS_SERVER_CLIENT_SERVER_QUESTIONS_H_
#define GRADSYNC_PS_SERVER_CLIENT_SERVER_QUESTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Where parameter servers run, asked before a run begins.

// Asks each server, on a stream of its own, which host it is on: the keys (HostIdentity::Key() in
// core/base/host_identity.h), by index. The question takes no part in the server's run.
// Thread-safe; blocks until all have answered, at most until `deadline`; no member of the job has
// seen them yet. Errors, all naming the server: those of ConnectToMember() for a peer that is no
// member; DEADLINE_EXCEEDED or UNAVAILABLE when it does not answer; INVALID_ARGUMENT when the
// answer is none; what it refuses with.
absl::StatusOr<std::vector<std::string>> AskServerHosts(StreamLink& link,
                                                        const std::vector<std::string>& servers,
                                                        Deadline deadline,
                                                        absl::Duration failure_timeout);

// What one server's clock shows, seen from here, and what it recorded.

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

#endif  // GRADSYNC_PS_SERVER_CLIENT_SERVER_QUESTIONS_H_
