#ifndef GRADSYNC_CORE_PLAN_UPDATE_SITE_H_
#define GRADSYNC_CORE_PLAN_UPDATE_SITE_H_

namespace gradsync {

// Who runs the optimizer; see core/sync/gradient_sync.h.
enum class UpdateSite { kWorker, kOwner };

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_UPDATE_SITE_H_
