#ifndef GRADSYNC_CORE_LINKS_LOST_STREAM_H_
#define GRADSYNC_CORE_LINKS_LOST_STREAM_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// What it means to `own` ("rank 0") that its stream with `peer` ("rank 1") at `address` ended without
// a goodbye, by `status`: that the peer is lost, or the link between them cut, or, where the peer said
// who is, what it said. `stream`: "the stream from it". Thread-safe.
absl::Status LostStream(absl::string_view own, absl::string_view peer, absl::string_view address,
                        absl::string_view stream, const absl::Status& status);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_LOST_STREAM_H_
