// Streams with members of the group: how they come about, and what it means when they do not, or end.

#ifndef GRADSYNC_CORE_LINKS_MEMBER_STREAM_H_
#define GRADSYNC_CORE_LINKS_MEMBER_STREAM_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Connects as `link` does, to a peer that is a member of the group: it has said that it listens, so
// nothing but a failure keeps it from answering, and it has `failure_timeout` for that. Where the peer
// may yet have to be started, `is_member` is asked after that time, and again, for as long as it is
// not one. Errors: those of StreamLink::Connect(); that of a member which does not answer is a
// suspicion (core/base/errors.h), since it may be lost, and the group know that soon.
// RESOURCE_EXHAUSTED as such a suspicion when the member's host answers and it does not, and not as
// one when there was no answer for `failure_timeout`, of a member or not, and this process has no
// descriptors left.
absl::StatusOr<std::shared_ptr<FrameStream>> ConnectToMember(
    StreamLink& link, const std::string& address, int connection, std::shared_ptr<FrameSink> sink,
    Deadline deadline, absl::Duration failure_timeout,
    const std::function<bool()>& is_member = [] { return true; });

// What such an error says of the member `name`, "rank 2" say: that it is the culprit, but for what
// this process lacks itself. A suspicion stays one.
absl::Status NoConnection(absl::string_view name, const absl::Status& why);

// What it means to `own` ("rank 0") that its stream with `peer` ("rank 1") at `address` ended without
// a goodbye, by `status`: that the peer is lost, or the link between them cut, or, where the peer said
// who is, what it said. `stream`: "the stream from it". Thread-safe.
absl::Status LostStream(absl::string_view own, absl::string_view peer, absl::string_view address,
                        absl::string_view stream, const absl::Status& status);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_MEMBER_STREAM_H_
