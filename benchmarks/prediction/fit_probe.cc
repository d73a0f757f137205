#include "benchmarks/prediction/fit_probe.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/records/proto_json.h"
#include "proto/run_record.pb.h"
#include "simulator/calibration.h"

namespace gradsync {

absl::StatusOr<Calibration> FitProbe(const std::string& path, LinkConstants start) {
  proto::RunRecords records;
  const absl::Status read = ReadJson(path, &records);
  if (!read.ok()) return Named("probe", read);
  const absl::StatusOr<std::vector<Probe>> probes = ProbesOf(records);
  if (!probes.ok()) return Named("probe", probes.status());
  for (const proto::Network& network : records.networks()) {
    if (network.tcp_factor() > 0) start.rate_factor = network.tcp_factor();
  }
  if (start.cores.count > 0) {
    const absl::StatusOr<CoreCosts> costs = FitCoreCosts(*probes, start.cores.count);
    if (!costs.ok()) return Named("probe", costs.status());
    start.cores = *costs;
  }
  absl::StatusOr<Calibration> fit = Calibrate(
      *probes,
      {LinkConstant::kLatency, LinkConstant::kSecondsPerMessage, LinkConstant::kSecondsPerStep},
      start);
  return fit.ok() ? fit : Named("probe", fit.status());
}

std::string FormatCalibration(const Calibration& calibration) {
  const LinkConstants& constants = calibration.constants;
  std::string cores;
  if (constants.cores.count > 0) {
    cores = absl::StrFormat(
        "; an end of a message takes one of %d cores for %.1f us and %.2f ns per byte",
        constants.cores.count, 1e6 * constants.cores.seconds_per_message,
        1e9 * constants.cores.seconds_per_byte);
  }
  return absl::StrFormat(
      "probe: rate_factor %.3f, latency %.0f us, message_cost %.1f us, step_overhead %.0f us; "
      "simulated times of the probe itself within %.1f %%%s",
      constants.rate_factor, 1e6 * constants.latency, 1e6 * constants.seconds_per_message,
      1e6 * constants.seconds_per_step, 100 * calibration.worst_error, cores);
}

}  // namespace gradsync
