#ifndef GRADSYNC_WORKER_MEMORY_LINE_H_
#define GRADSYNC_WORKER_MEMORY_LINE_H_

#include <string>

#include "core/plan/job_spec.h"
#include "core/plan/plan.h"

namespace gradsync {

// What rank 0 keeps between steps where buckets share memory, beside what it would keep if they did
// not and it updated itself; by the arithmetic of core/plan/sharding.h. `staged`: and what of it
// a GPU has as well (core/sync/staged_sync.h). Empty where no buckets share memory.
// `own_servers`: how many workers are parameter servers too, rank 0 among them; 0: none.
std::string MemoryLine(const Plan& plan, const JobSpec& spec, int own_servers, bool staged);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MEMORY_LINE_H_
