#ifndef GRADSYNC_WORKER_REPLICA_LINE_H_
#define GRADSYNC_WORKER_REPLICA_LINE_H_

#include <string>
#include <vector>

#include "worker/train/step_times.h"

namespace gradsync {

// Where the steps of a process with several replicas spent their time, and what of that is the load
// of device 0. Empty where it had one, or no step.
std::string ReplicaLine(const std::vector<StepTimes>& times, int replicas);

// For what share of the steps each stage of this process computed, and before which blocks stages
// begin. Empty where it had one, or no step.
std::string StageLine(const std::vector<StepTimes>& times, const std::string& split);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_REPLICA_LINE_H_
