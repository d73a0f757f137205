#include "simulator/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/plan/shard_map.h"
#include "core/plan/wire_traffic.h"
#include "simulator/simulate.h"

namespace gradsync {
namespace {

constexpr int kMost = 3;
constexpr int kRounds = 30;

using Vector = std::array<double, kMost>;
using Matrix = std::array<Vector, kMost>;

double* Find(LinkConstant constant, LinkConstants* constants) {
  switch (constant) {
    case LinkConstant::kRateFactor:
      return &constants->rate_factor;
    case LinkConstant::kLatency:
      return &constants->latency;
    case LinkConstant::kSecondsPerMessage:
      return &constants->seconds_per_message;
    case LinkConstant::kSecondsPerStep:
      return &constants->seconds_per_step;
  }
  return nullptr;
}

// A change that is felt, and in which the constants can be compared.
double Unit(LinkConstant constant) {
  switch (constant) {
    case LinkConstant::kRateFactor:
      return 0.01;
    case LinkConstant::kLatency:
    case LinkConstant::kSecondsPerMessage:
      return 1e-6;
    case LinkConstant::kSecondsPerStep:
      return 1e-5;
  }
  return 0;
}

absl::StatusOr<std::vector<double>> Errors(const std::vector<Probe>& probes,
                                           const LinkConstants& constants) {
  std::vector<double> errors;
  for (const Probe& probe : probes) {
    Cluster cluster = probe.cluster;
    cluster.constants = constants;
    GS_ASSIGN_OR_RETURN(const double seconds, SimulateExchange(probe.plan, cluster));
    errors.push_back(seconds / probe.seconds - 1);
  }
  return errors;
}

double SumOfSquares(const std::vector<double>& errors) {
  double sum = 0;
  for (double error : errors) sum += error * error;
  return sum;
}

// Gaussian elimination with pivoting; a direction in which nothing changes is left alone.
Vector Solve(Matrix a, Vector b, int n) {
  for (int i = 0; i < n; ++i) {
    int pivot = i;
    for (int row = i + 1; row < n; ++row) {
      if (std::abs(a[row][i]) > std::abs(a[pivot][i])) pivot = row;
    }
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    if (a[i][i] == 0) continue;
    for (int row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (int col = i; col < n; ++col) a[row][col] -= factor * a[i][col];
      b[row] -= factor * b[i];
    }
  }
  Vector x = {};
  for (int i = n - 1; i >= 0; --i) {
    double rest = b[i];
    for (int col = i + 1; col < n; ++col) rest -= a[i][col] * x[col];
    x[i] = a[i][i] == 0 ? 0 : rest / a[i][i];
  }
  return x;
}

absl::Status Check(const std::vector<Probe>& probes, const std::vector<LinkConstant>& free) {
  if (free.empty() || free.size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("calibration: expected 1 to ", kMost, " free constants, found ", free.size()));
  }
  if (probes.size() < free.size()) {
    return absl::InvalidArgumentError(absl::StrCat("calibration: expected at least ", free.size(),
                                                   " probes, found ", probes.size()));
  }
  for (const Probe& probe : probes) {
    if (!(probe.seconds > 0) || !std::isfinite(probe.seconds)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "calibration: expected times of more than 0 seconds, found ", probe.seconds));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Flow>> FlowsOf(const Probe& probe) {
  const Cluster& cluster = probe.cluster;
  if (cluster.ring) return RingStepFlows(probe.plan, cluster.returned);
  GS_ASSIGN_OR_RETURN(
      const ShardMap shards,
      ShardMap::Create(probe.plan, ServerWeights(cluster, probe.plan.world_size())));
  return PsStepFlows(probe.plan, shards, cluster.returned);
}

}  // namespace

absl::StatusOr<Calibration> Calibrate(const std::vector<Probe>& probes,
                                      const std::vector<LinkConstant>& free,
                                      const LinkConstants& start) {
  GS_RETURN_IF_ERROR(Check(probes, free));
  const int n = static_cast<int>(free.size());
  LinkConstants best = start;
  GS_ASSIGN_OR_RETURN(std::vector<double> errors, Errors(probes, best));
  double damping = 1e-3;
  for (int round = 0; round < kRounds; ++round) {
    std::array<std::vector<double>, kMost> slopes;
    for (int i = 0; i < n; ++i) {
      LinkConstants moved = best;
      *Find(free[i], &moved) += Unit(free[i]);
      GS_ASSIGN_OR_RETURN(slopes[i], Errors(probes, moved));
      for (size_t p = 0; p < probes.size(); ++p) slopes[i][p] -= errors[p];
    }
    Matrix normal = {};
    Vector right = {};
    for (int i = 0; i < n; ++i) {
      for (size_t p = 0; p < probes.size(); ++p) {
        right[i] -= slopes[i][p] * errors[p];
        for (int j = 0; j < n; ++j) normal[i][j] += slopes[i][p] * slopes[j][p];
      }
    }
    for (int i = 0; i < n; ++i) normal[i][i] *= 1 + damping;
    const Vector step = Solve(normal, right, n);
    LinkConstants next = best;
    for (int i = 0; i < n; ++i) {
      double* const value = Find(free[i], &next);
      const double least = free[i] == LinkConstant::kRateFactor ? Unit(free[i]) : 0;
      *value = std::max(least, *value + step[i] * Unit(free[i]));
    }
    GS_ASSIGN_OR_RETURN(const std::vector<double> next_errors, Errors(probes, next));
    const double before = SumOfSquares(errors);
    const double after = SumOfSquares(next_errors);
    if (after < before) {
      best = next;
      errors = next_errors;
      damping /= 10;
      if (before - after < 1e-9 * before) break;
    } else {
      damping *= 10;
      if (damping > 1e6) break;
    }
  }
  Calibration calibration;
  calibration.constants = best;
  for (double error : errors) {
    calibration.worst_error = std::max(calibration.worst_error, std::abs(error));
  }
  return calibration;
}

absl::StatusOr<CoreCosts> FitCoreCosts(const std::vector<Probe>& probes, int cores) {
  if (cores < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("costs of cores: expected at least 1 core, found ", cores));
  }
  // Of both costs: sums of squares and products of what a core second has of each.
  double mm = 0, mb = 0, bb = 0, m = 0, b = 0;
  int count = 0;
  for (const Probe& probe : probes) {
    if (!(probe.core_seconds > 0)) continue;
    GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, FlowsOf(probe));
    double messages = 0;
    double bytes = 0;
    for (const Flow& flow : flows) {
      messages += 2 * static_cast<double>(flow.messages) / probe.core_seconds;
      bytes += 2 * static_cast<double>(flow.bytes) / probe.core_seconds;
    }
    mm += messages * messages;
    mb += messages * bytes;
    bb += bytes * bytes;
    m += messages;
    b += bytes;
    ++count;
  }
  if (count < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("costs of cores: expected at least 2 exchanges of which is known how busy the "
                     "cores were, found ",
                     count));
  }
  CoreCosts costs;
  costs.count = cores;
  const double determinant = mm * bb - mb * mb;
  if (determinant > 1e-9 * mm * bb) {
    costs.seconds_per_message = (m * bb - b * mb) / determinant;
    costs.seconds_per_byte = (b * mm - m * mb) / determinant;
  } else {
    costs.seconds_per_byte = b / bb;
  }
  if (costs.seconds_per_message < 0) {
    costs.seconds_per_message = 0;
    costs.seconds_per_byte = b / bb;
  } else if (costs.seconds_per_byte < 0) {
    costs.seconds_per_byte = 0;
    costs.seconds_per_message = m / mm;
  }
  return costs;
}

}  // namespace gradsync
