// How errors are worded, whom they blame, and how certain that is.

#ifndef GRADSYNC_CORE_BASE_ERRORS_H_
#define GRADSYNC_CORE_BASE_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

// The same error, of whom or what: "who: message". `status` is not OK.
inline absl::Status Annotate(absl::string_view who, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(who, ": ", status.message()));
}

// How every program words a flag whose value is wrong: INVALID_ARGUMENT, `--flag: expected this,
// found "that"`. Thread-safe.
inline absl::Status FlagError(absl::string_view flag, absl::string_view expected,
                              absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected ", expected, ", found \"", found, "\""));
}

// `text` up to its first line break: what an exception of LibTorch says, without the stack frames
// below it. A view of `text`. Pure.
inline absl::string_view FirstLine(absl::string_view text) {
  return text.substr(0, text.find('\n'));
}

// What messages call the process, or the link, that is to blame: they begin with it.

// Whether `message` begins with a culprit: "rank 3", "ranks 2, 3", "server 0 (10.0.0.7:4000)",
// "link rank 1 - ".
bool BeginsWithCulprit(absl::string_view message);

// `line` from its culprit on, where that comes behind no more than two words and their colons, a
// program's name, a status code or an address, as in "worker: UNAVAILABLE: rank 1 lost"; otherwise
// the whole line.
absl::string_view FromCulprit(absl::string_view line);

// Failures that may be the consequence of others. A connection on which nothing comes any more looks
// the same whether the peer has stopped, its host is gone or only the way between the two is cut.
// Who sees it cannot tell, but the group will soon know if the peer is lost; if not, the link is cut.

// `status`, not OK, which is to be believed if nobody has found a better reason within `patience`;
// with a patience of zero, as it is.
absl::Status Suspicion(absl::Status status, absl::Duration patience);

// `status` when it is believed. What is shown to users should be: a suspicion shows its patience.
absl::Status Certain(absl::Status status);

// How long to wait for a better reason; zero for a status that is certain.
absl::Duration PatienceWith(const absl::Status& status);

// For what one process sees for itself, which may be sooner than the group knows who is lost: its last
// sign of life may have come later.
inline constexpr absl::Duration kUntilTheGroupKnows = absl::Milliseconds(1250);

// The suspicion `why`, of the link between two processes: "link rank 0 - server 1 (host:port): ...".
// Of the far one alone where its host answers (RESOURCE_EXHAUSTED, core/links/member_stream.h).
absl::Status CutLink(absl::string_view from, absl::string_view to, const absl::Status& why);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_ERRORS_H_
