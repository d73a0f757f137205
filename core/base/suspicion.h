// Failures that may be the consequence of others. A connection on which nothing comes any more looks
// the same whether the peer has stopped, its host is gone or only the way between the two is cut.
// Who sees it cannot tell, but the group will soon know if the peer is lost; if not, the link is cut.

#ifndef GRADSYNC_CORE_BASE_SUSPICION_H_
#define GRADSYNC_CORE_BASE_SUSPICION_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

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
// Of the far one alone where its host answers (RESOURCE_EXHAUSTED, core/links/connect_to_member.h).
absl::Status CutLink(absl::string_view from, absl::string_view to, const absl::Status& why);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SUSPICION_H_
