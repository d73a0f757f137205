#ifndef GRADSYNC_SYNC_UPDATE_SITE_H_
#define GRADSYNC_SYNC_UPDATE_SITE_H_

namespace gradsync {

// Who runs the optimizer; see gradient_sync.h.
enum class UpdateSite { kWorker, kOwner };

}  // namespace gradsync

#endif  // GRADSYNC_SYNC_UPDATE_SITE_H_
