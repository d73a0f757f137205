// What messages call the process, or the link, that is to blame: they begin with it.

#ifndef GRADSYNC_CORE_BASE_CULPRIT_H_
#define GRADSYNC_CORE_BASE_CULPRIT_H_

#include "absl/strings/string_view.h"

namespace gradsync {

// Whether `message` begins with a culprit: "rank 3", "ranks 2, 3", "server 0 (10.0.0.7:4000)",
// "link rank 1 - ".
bool BeginsWithCulprit(absl::string_view message);

// `line` from its culprit on, where that comes behind no more than two words and their colons, a
// program's name, a status code or an address, as in "worker: UNAVAILABLE: rank 1 lost"; otherwise
// the whole line.
absl::string_view FromCulprit(absl::string_view line);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_CULPRIT_H_
