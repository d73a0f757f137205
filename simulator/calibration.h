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

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_CALIBRATION_H_
