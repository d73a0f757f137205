// What rank 0 prints about its memory and its steps, a line each.

#ifndef GRADSYNC_WORKER_SUMMARY_LINES_H_
#define GRADSYNC_WORKER_SUMMARY_LINES_H_

#include <string>
#include <vector>

#include "core/plan/job_spec.h"
#include "core/plan/plan.h"
#include "worker/train/step_times.h"

namespace gradsync {

// What rank 0 keeps between steps where buckets share memory, beside what it would keep if they did
// not and it updated itself; by the arithmetic of core/plan/sharding.h. `staged`: and what of it
// a GPU has as well (core/sync/staged_sync.h). Empty where no buckets share memory.
// `own_servers`: how many workers are parameter servers too, rank 0 among them; 0: none.
std::string MemoryLine(const Plan& plan, const JobSpec& spec, int own_servers, bool staged);

// Where the steps of a process with several replicas spent their time, and what of that is the load
// of device 0. Empty where it had one, or no step.
std::string ReplicaLine(const std::vector<StepTimes>& times, int replicas);

// For what share of the steps each stage of this process computed, and before which blocks stages
// begin. Empty where it had one, or no step.
std::string StageLine(const std::vector<StepTimes>& times, const std::string& split);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SUMMARY_LINES_H_
