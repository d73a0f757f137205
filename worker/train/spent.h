#ifndef GRADSYNC_WORKER_TRAIN_SPENT_H_
#define GRADSYNC_WORKER_TRAIN_SPENT_H_

#include "absl/time/time.h"
#include "core/group/wire_stats.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// What this process has spent since some moment. A value.
struct Spent {
  absl::Duration time;
  absl::Duration cpu;  // user and system time
  WireStats wire;
};

Spent operator-(const Spent& a, const Spent& b);

// Until now, since a moment that is the same for all calls; of the wire what `sync` counts.
Spent SpentSoFar(const GradientSync& sync);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_SPENT_H_
