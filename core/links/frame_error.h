// Why a peer failed, as FAILED frames say it.

#ifndef GRADSYNC_CORE_LINKS_FRAME_ERROR_H_
#define GRADSYNC_CORE_LINKS_FRAME_ERROR_H_

#include "absl/status/status.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A FAILED frame's header with `error`, which is not OK; of a message above 4 KiB only
// the beginning, and U+FFFD for bytes that are not UTF-8. Thread-safe, as is FailureIn().
proto::FrameHeader FailedHeader(const absl::Status& error);

// The status in a FAILED frame that a peer sent, which may say anything: the result is never OK.
// A code that is no error's, OK included, becomes UNKNOWN, and the message says which it was. Of a
// message above 4 KiB there is only the beginning.
absl::Status FailureIn(const proto::FrameHeader& header);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_FRAME_ERROR_H_
