// The flags of //worker that have an effect only beside others.

#ifndef GRADSYNC_WORKER_FLAG_EFFECTS_H_
#define GRADSYNC_WORKER_FLAG_EFFECTS_H_

#include <vector>

#include "core/base/flag_effects.h"

namespace gradsync {

// The one list of them. What two flags may not have together, or how large a value may be, is not
// in it: that is checked where the values are used.
std::vector<FlagEffect> WorkerFlagEffects();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_FLAG_EFFECTS_H_
