#ifndef GRADSYNC_CORE_LINKS_SILENCE_H_
#define GRADSYNC_CORE_LINKS_SILENCE_H_

#include <algorithm>

#include "absl/time/time.h"

namespace gradsync {

// When a connection counts as silent, and for how long others are believed to know better why. A
// process that stops keeps its host, which goes on to acknowledge; so a connection on which nothing
// is acknowledged is cut, or its peer's host is gone. That one is known to be lost by a judgement
// (core/group/liveness.h) half a second after the failure timeout.
struct Silence {
  absl::Duration interval;  // in which idle connections are asked for a sign, and all are looked at
  absl::Duration limit;     // without an acknowledgement of what was sent
  absl::Duration
      patience;  // of the suspicion (core/base/errors.h) with which the connection ends
};

// For a finite `failure_timeout`. Silence is noticed by then, and the suspicion is believed
// 0.75 to 1.5 seconds later.
inline Silence SilenceFor(absl::Duration failure_timeout) {
  const absl::Duration interval = std::min(failure_timeout / 40, absl::Milliseconds(250));
  return {interval, failure_timeout - 2 * interval, 2 * interval + absl::Milliseconds(750)};
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_SILENCE_H_
