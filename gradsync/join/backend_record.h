#ifndef GRADSYNC_GRADSYNC_JOIN_BACKEND_RECORD_H_
#define GRADSYNC_GRADSYNC_JOIN_BACKEND_RECORD_H_

#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Writes into a record which backend ran, as `sync` itself says it. `Record` is a message of
// proto/run_record.proto that has these fields.
template <typename Record>
void RecordBackend(const GradientSync& sync, Record* record) {
  const SyncIdentity identity = sync.identity();
  const BackendTrait& trait = TraitOf(identity.backend);
  record->set_topology(TopologyName(trait.topology));
  record->set_link(LinkName(trait.link));
  record->set_update(UpdateSiteName(sync.update_site()));
  record->set_consistency(ConsistencyName(identity.consistency));
  record->set_connections(identity.connections);
  record->set_bytes_uncounted(!trait.counts_bytes);
  record->set_own_order(!trait.plan_order);
}

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_BACKEND_RECORD_H_
