#ifndef GRADSYNC_SYNC_SYNC_IDENTITY_H_
#define GRADSYNC_SYNC_SYNC_IDENTITY_H_

#include "plan/consistency.h"
#include "plan/job_spec.h"

namespace gradsync {

// What a backend is, as the object that runs says it. Records are filled from this and never from
// what was asked for.
struct SyncIdentity {
  Backend backend = Backend::kLocal;
  Consistency consistency;
  int connections = 0;  // per pair of peers; 0 where there are none
  bool staged = false;  // a GPU has the buckets, and copies of the host's memory are exchanged
};

}  // namespace gradsync

#endif  // GRADSYNC_SYNC_SYNC_IDENTITY_H_
