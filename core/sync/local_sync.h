#ifndef GRADSYNC_CORE_SYNC_LOCAL_SYNC_H_
#define GRADSYNC_CORE_SYNC_LOCAL_SYNC_H_

#include <memory>

#include "core/sync/gradient_sync.h"

namespace gradsync {

// A GradientSync for one worker: nothing is exchanged, and the mean is the worker's own gradient (times the inverse loss
// scale). It is the base line of every comparison, and the topology `local`: several workers that each have one train by
// themselves, which shows what a step costs without synchronisation.
std::unique_ptr<GradientSync> CreateLocalSync(UpdateSite update_site);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_LOCAL_SYNC_H_
