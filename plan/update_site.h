#ifndef GRADSYNC_PLAN_UPDATE_SITE_H_
#define GRADSYNC_PLAN_UPDATE_SITE_H_

namespace gradsync {

// Who runs the optimizer; see sync/gradient_sync.h.
enum class UpdateSite { kWorker, kOwner };

}  // namespace gradsync

#endif  // GRADSYNC_PLAN_UPDATE_SITE_H_
