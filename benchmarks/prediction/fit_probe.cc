#include "benchmarks/prediction/fit_probe.h"

#include <fstream>
#include <sstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/flag_error.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/records/proto_json.h"
#include "proto/run_record.pb.h"

namespace gradsync {
namespace {

absl::Status Named(const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("--probe: ", status.message()));
}

}  // namespace

absl::StatusOr<Calibration> FitProbe(const std::string& path, LinkConstants start) {
  std::ifstream in(path);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) return FlagError("probe", "a file that can be read", path);
  proto::RunRecords records;
  if (const absl::Status read = ParseJson(text.str(), path, &records); !read.ok()) {
    return Named(read);
  }
  const absl::StatusOr<std::vector<Probe>> probes = ProbesOf(records);
  if (!probes.ok()) return Named(probes.status());
  for (const proto::Network& network : records.networks()) {
    if (network.tcp_factor() > 0) start.rate_factor = network.tcp_factor();
  }
  absl::StatusOr<Calibration> fit = Calibrate(
      *probes,
      {LinkConstant::kLatency, LinkConstant::kSecondsPerMessage, LinkConstant::kSecondsPerStep},
      start);
  return fit.ok() ? fit : Named(fit.status());
}

std::string FormatCalibration(const Calibration& calibration) {
  const LinkConstants& constants = calibration.constants;
  return absl::StrFormat(
      "probe: rate_factor %.3f, latency %.0f us, message_cost %.1f us, step_overhead %.0f us; "
      "simulated times of the probe itself within %.1f %%",
      constants.rate_factor, 1e6 * constants.latency, 1e6 * constants.seconds_per_message,
      1e6 * constants.seconds_per_step, 100 * calibration.worst_error);
}

}  // namespace gradsync
