#ifndef GRADSYNC_CORE_BASE_RUN_BOUNDED_H_
#define GRADSYNC_CORE_BASE_RUN_BOUNDED_H_

#include <functional>

#include "absl/time/time.h"

namespace gradsync {

// For calls that may hang and cannot be interrupted: runs `call` on a thread of its own, and
// destroys it there. Returns true when that is done, or false after `bound`, while it goes on by
// itself: whatever it uses it must own. Thread-safe.
bool RunBounded(absl::Duration bound, std::function<void()> call);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_RUN_BOUNDED_H_
