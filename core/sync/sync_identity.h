#ifndef GRADSYNC_CORE_SYNC_SYNC_IDENTITY_H_
#define GRADSYNC_CORE_SYNC_SYNC_IDENTITY_H_

#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"

namespace gradsync {

// What a backend is, as the object that runs says it. Records are filled from this and never from
// what was asked for.
struct SyncIdentity {
  // `connections` are per pair of peers; 0 where there are none.
  SyncIdentity(Backend backend, Consistency consistency = {}, int connections = 0)
      : backend(backend), consistency(consistency), connections(connections) {}

  Backend backend;
  Consistency consistency;
  int connections;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_SYNC_IDENTITY_H_
