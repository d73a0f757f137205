// Constants of a cluster from a short probe: a handful of measured exchanges.
//
// Least squares over the relative errors of simulated against measured times, of at most three
// constants, none below 0. Three, because few probes tell more apart: large exchanges fix the rate,
// small ones what a step costs, many small chunks what a message costs, and a long ring the
// latency. Probe with other configurations than those that are then predicted.
//
// Source: Gauss-Newton with damping (Levenberg, "A method for the solution of certain non-linear
// problems in least squares", 1944; Marquardt, 1963), with numeric derivatives.

#ifndef GRADSYNC_SIMULATOR_CALIBRATION_H_
#define GRADSYNC_SIMULATOR_CALIBRATION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "simulator/cluster.h"
#include "simulator/network.h"

namespace gradsync {

// One measured exchange of all buckets of `plan`, ready at once. `cluster.constants` are ignored.
struct Probe {
  Plan plan;
  Cluster cluster;
  double seconds = 0;
  // That all cores of the machine were busy for it, where one machine has all hosts; 0: not known.
  double core_seconds = 0;
};

enum class LinkConstant { kRateFactor, kLatency, kSecondsPerMessage, kSecondsPerStep };

struct Calibration {
  LinkConstants constants;
  double worst_error = 0;  // of a probe's time: |simulated / measured - 1|
};

// Fits `free`, beginning at `start`, whose other constants stay. Deterministic; thread-safe; blocks
// to compute, for some ten simulations per probe and constant.
// Errors: INVALID_ARGUMENT for no or more than three free constants, fewer probes than constants, a
// time that is not positive; those of SimulateExchange().
absl::StatusOr<Calibration> Calibrate(const std::vector<Probe>& probes,
                                      const std::vector<LinkConstant>& free,
                                      const LinkConstants& start = LinkConstants());

// What each end of a message, and each byte of it, cost the machine on which `probes` were
// measured, which has `cores`: least squares over the relative errors of their core_seconds,
// neither cost below 0. No time of an exchange is looked at, only how busy the cores were. Probes
// without core_seconds are left out. Pure; thread-safe. Errors: INVALID_ARGUMENT for fewer than two
// probes that have them, or for less than one core; those of ShardMap::Create().
absl::StatusOr<CoreCosts> FitCoreCosts(const std::vector<Probe>& probes, int cores);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_CALIBRATION_H_
