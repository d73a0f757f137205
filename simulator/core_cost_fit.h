#ifndef GRADSYNC_SIMULATOR_CORE_COST_FIT_H_
#define GRADSYNC_SIMULATOR_CORE_COST_FIT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "simulator/calibration.h"
#include "simulator/shared_cores.h"

namespace gradsync {

// What each end of a message, and each byte of it, cost the machine on which `probes` were measured,
// which has `cores`: least squares over the relative errors of their core_seconds, neither cost below
// 0. No time of an exchange is looked at, only how busy the cores were. Probes without core_seconds
// are left out. Pure; thread-safe.
// Errors: INVALID_ARGUMENT for fewer than two probes that have them, or for less than one core;
// those of ShardMap::Create().
absl::StatusOr<CoreCosts> FitCoreCosts(const std::vector<Probe>& probes, int cores);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_CORE_COST_FIT_H_
