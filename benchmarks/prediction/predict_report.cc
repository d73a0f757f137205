#include "benchmarks/prediction/predict_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/table.h"

namespace gradsync {
namespace {

// Differences below it are not worth a sentence, let alone a machine.
constexpr double kEqual = 0.01;

bool Together(const proto::Run& a, const proto::Run& b) {
  return a.workers() == b.workers() && a.bandwidth() == b.bandwidth();
}

// Whether its workers do.
bool Meets(const proto::Run& run) { return SpecOf(run).topology != Topology::kLocal; }

int ReplicasOf(const proto::Run& run) { return std::max(1, run.data_parallel()); }

std::vector<std::string> Row(const proto::Run& run, const std::string& mark) {
  const bool ps = run.servers() > 0;
  const double bytes = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
  return {absl::StrCat(run.workers()),
          run.topology(),
          ps ? run.placement() : "-",
          ps ? absl::StrCat(run.servers()) : "-",
          run.update(),
          absl::StrCat(run.zero()),
          run.compression(),
          run.consistency().empty() ? "-" : run.consistency(),
          run.bandwidth().empty() ? "-" : run.bandwidth(),
          Ms(run.step_ms_p50()),
          Ms(run.exposed_ms_p50()),
          Percent(run.scaling_efficiency()),
          absl::StrFormat("%.1f", run.samples_per_s()),
          absl::StrFormat("%.1f", 1e-6 * bytes),
          absl::StrFormat("%.1f", 1e-6 * run.worker_memory_bytes()),
          mark};
}

struct Ways {
  double ring = 0;                // step time, ms
  double beside = 0;              // servers beside all workers; 0: not asked for
  std::vector<double> dedicated;  // [k - 1]
};

absl::StatusOr<double> StepMs(const proto::StepProfile& profile, const PredictedJob& job) {
  GS_ASSIGN_OR_RETURN(const proto::Run run, PredictRun(profile, job));
  return run.step_ms_p50();
}

absl::StatusOr<Ways> TryAll(const proto::StepProfile& profile, PredictedJob job, int most_servers,
                            bool colocated) {
  Ways ways;
  if (job.placed.zero < 2) job.method = SimulationMethod::kFluid;
  PlacedJob& placed = job.placed;
  placed.spec.topology = Topology::kRing;
  placed.placement = Placement::kNone;
  placed.servers = 0;
  GS_ASSIGN_OR_RETURN(ways.ring, StepMs(profile, job));
  placed.spec.topology = Topology::kPs;
  if (colocated) {
    placed.placement = Placement::kColocated;
    placed.servers = placed.workers;
    GS_ASSIGN_OR_RETURN(ways.beside, StepMs(profile, job));
  }
  placed.placement = Placement::kDedicated;
  for (placed.servers = 1; placed.servers <= most_servers; ++placed.servers) {
    GS_ASSIGN_OR_RETURN(ways.dedicated.emplace_back(), StepMs(profile, job));
  }
  return ways;
}

}  // namespace

std::string PredictTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const proto::Run& run : runs) {
    int rivals = 0, equals = 0;
    bool fastest = Meets(run);
    for (const proto::Run& other : runs) {
      if (!Together(run, other) || !Meets(other)) continue;
      const double ratio = other.step_ms_p50() / run.step_ms_p50();
      ++rivals;
      equals += ratio <= 1 + kEqual;
      fastest &= ratio >= 1 - kEqual;
    }
    rows.push_back(Row(run, !fastest || rivals == 1 ? ""
                            : equals == 1           ? "fastest"
                                                    : "among the fastest"));
  }
  std::vector<Column> columns = {{"workers"},
                                 {"topology", Align::kLeft},
                                 {"placement", Align::kLeft},
                                 {"servers"},
                                 {"update", Align::kLeft},
                                 {"zero"},
                                 {"compression", Align::kLeft},
                                 {"consistency", Align::kLeft},
                                 {"bandwidth", Align::kRight},
                                 {"step\nms"},
                                 {"exposed\nms"},
                                 {"effi-\nciency"},
                                 {"samples/s"},
                                 {"busiest host\nMB per step"},
                                 {"worker keeps\nMB"},
                                 {"", Align::kLeft}};
  if (std::any_of(runs.begin(), runs.end(),
                  [](const proto::Run& run) { return ReplicasOf(run) > 1; })) {
    columns.insert(columns.begin() + 1, {"replicas\nin each"});
    for (int i = 0; i < runs.size(); ++i) {
      rows[i].insert(rows[i].begin() + 1, absl::StrCat(ReplicasOf(runs[i])));
    }
  }
  return FormatTable(columns, rows);
}

absl::StatusOr<std::string> Advise(const proto::StepProfile& profile, const PredictedJob& job,
                                   int most_servers, bool colocated) {
  GS_ASSIGN_OR_RETURN(const Ways ways, TryAll(profile, job, most_servers, colocated));
  const int n = job.placed.workers;
  // What needs no further machine.
  const bool beside = ways.beside > 0 && ways.beside < ways.ring * (1 - kEqual);
  const double free = beside ? ways.beside : ways.ring;
  const std::string free_name =
      beside ? absl::StrCat("parameter servers beside all ", n, " workers") : "the ring";
  int flips = 0, best = 0;  // numbers of servers
  for (int k = 1; k <= static_cast<int>(ways.dedicated.size()); ++k) {
    const double time = ways.dedicated[k - 1];
    if (flips == 0 && time < free * (1 - kEqual)) flips = k;
    if (flips > 0 && (best == 0 || time < ways.dedicated[best - 1] * (1 - kEqual))) best = k;
  }
  const std::string cluster = absl::StrCat("For ", profile.model(), " on ", Count(n, "worker"),
                                           " at ", job.placed.bandwidth);
  if (flips == 0) {
    const bool tried = !ways.dedicated.empty();
    const double nearest =
        tried ? *std::min_element(ways.dedicated.begin(), ways.dedicated.end()) : 0;
    return absl::StrCat(
        cluster, " use ", free_name, ", ", Ms(free), " ms per step",
        tried ? absl::StrFormat(
                    ": with 1 to %d servers on hosts of their own a step takes %s ms or more, so "
                    "no number of them gains more than %.0f%%.",
                    ways.dedicated.size(), Ms(nearest), 100 * kEqual)
              : ".");
  }
  const double time = ways.dedicated[best - 1];
  const double gain = 1 - time / free;
  const std::string below =
      flips == 1 ? absl::StrCat("already one server is faster than ", free_name)
                 : absl::StrFormat("with fewer than %d %s is as fast or faster (%s ms)", flips,
                                   free_name, Ms(free));
  const std::string at_flip = best == flips
                                  ? ""
                                  : absl::StrFormat(", with %d the servers begin to win (%s ms)",
                                                    flips, Ms(ways.dedicated[flips - 1]));
  return absl::StrFormat(
      "%s use %s on hosts of their own, %s ms per step, %.0f%% less than with %s: %s%s.", cluster,
      Count(best, "parameter server"), Ms(time), 100 * gain, free_name, below, at_flip);
}

}  // namespace gradsync
