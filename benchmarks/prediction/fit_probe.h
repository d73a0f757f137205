#ifndef GRADSYNC_BENCHMARKS_PREDICTION_FIT_PROBE_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_FIT_PROBE_H_

#include <string>

#include "absl/status/statusor.h"
#include "simulator/calibration.h"

namespace gradsync {

// Constants fitted to the exchanges that a file has, written by `sync_bench --bandwidth --json`:
// latency and what messages and steps cost, the others as in `start`, the rate factor that of bare
// TCP where the file has one; and where `start` has cores that hosts share, what they spend, from
// how busy those of the probed machine were. Thread-safe; blocks to read and to compute.
// Errors: INVALID_ARGUMENT naming --probe when the file cannot be read, has no usable exchanges or
// not enough of them.
absl::StatusOr<Calibration> FitProbe(const std::string& path, LinkConstants start);

// "probe: rate_factor 0.950, latency 50 us, ...; its own times within 1.0 %".
std::string FormatCalibration(const Calibration& calibration);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_FIT_PROBE_H_
