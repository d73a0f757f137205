// Ranks that were started differently would wait for each other in different places, or, which is
// worse, train something that nobody asked for. They compare their flags before anything else.

#ifndef GRADSYNC_GRADSYNC_JOIN_AGREE_ON_FLAGS_H_
#define GRADSYNC_GRADSYNC_JOIN_AGREE_ON_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/group/worker_group.h"

namespace gradsync {

// A rank's flags that must be the same on all ranks: names without dashes, and values as text.
using FlagTexts = std::map<std::string, std::string>;

// Collective, once, before anything that depends on a flag: through the store, the same under every
// topology and link. Blocks until all ranks have come, each for at most group.timeout; returns at
// once with one worker.
//
// Errors: FAILED_PRECONDITION on all ranks alike, as CompareFlags() words it; DEADLINE_EXCEEDED
// naming the ranks that did not come; INVALID_ARGUMENT where ranks disagree on the world's size;
// UNAVAILABLE when the store is lost.
absl::Status AgreeOnFlags(const WorkerGroup& group, const FlagTexts& flags);

// The same for flags that are known of all ranks, in their order. Errors: FAILED_PRECONDITION
// naming the flags that differ, the ranks and their values: "--lr: expected the same on all ranks;
// ranks 0, 2 have 0.1, rank 1 has 0.2". Pure.
absl::Status CompareFlags(const std::vector<FlagTexts>& ranks);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_AGREE_ON_FLAGS_H_
