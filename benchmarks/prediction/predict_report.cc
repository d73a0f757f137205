#include "benchmarks/prediction/predict_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"
#include "core/base/status_macros.h"

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

// With so many servers on hosts of their own.
struct Apart {
  double ms = 0;       // of a step
  bool mixed = false;  // and one more beside each worker
};

// Step times in ms; nothing where it cannot be, or was not asked for.
struct Ways {
  absl::optional<double> ring;
  absl::optional<double> beside;  // servers beside all workers
  std::vector<Apart> apart;       // [k - 1]
};

bool AllAlike(const std::vector<double>& slowness) {
  return std::all_of(slowness.begin(), slowness.end(),
                     [&slowness](double factor) { return factor == slowness[0]; });
}

class Trial {
 public:
  Trial(const proto::StepProfile& profile, PredictedJob job)
      : profile_(profile), job_(std::move(job)) {
    const bool alike = AllAlike(job_.slowness) && job_.constants.cores.count == 0;
    if (job_.placed.zero < 2 && alike) job_.method = SimulationMethod::kFluid;
  }

  absl::StatusOr<Ways> All(const ServerPlaces& places) {
    Ways ways;
    GS_ASSIGN_OR_RETURN(ways.ring, StepMs(Topology::kRing, Placement::kNone, 0));
    if (places.colocated) {
      GS_ASSIGN_OR_RETURN(ways.beside,
                          StepMs(Topology::kPs, Placement::kColocated, job_.placed.workers));
    }
    for (int servers = 1; servers <= places.most; ++servers) {
      absl::optional<double> dedicated, mixed;
      if (places.dedicated) {
        GS_ASSIGN_OR_RETURN(dedicated, StepMs(Topology::kPs, Placement::kDedicated, servers));
      }
      if (places.mixed) {
        GS_ASSIGN_OR_RETURN(mixed, StepMs(Topology::kPs, Placement::kMixed, servers));
      }
      if (!dedicated.has_value() && !mixed.has_value()) break;
      const bool is_mixed =
          mixed.has_value() && (!dedicated.has_value() || *mixed < *dedicated * (1 - kEqual));
      ways.apart.push_back({is_mixed ? *mixed : *dedicated, is_mixed});
    }
    if (tried_.empty()) return refusal_;
    return ways;
  }

  std::vector<proto::Run> TakeTried() { return std::move(tried_); }

 private:
  // Nothing for what cannot be, such as a ring under ssp.
  absl::StatusOr<absl::optional<double>> StepMs(Topology topology, Placement placement,
                                                int servers) {
    PlacedJob& placed = job_.placed;
    placed.spec.topology = topology;
    placed.spec.link = Link::kGrpc;
    placed.placement = placement;
    placed.servers = servers;
    if (const absl::Status possible = CheckJob(&placed); !possible.ok()) {
      refusal_.Update(possible);
      return absl::optional<double>();
    }
    GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(profile_, job_));
    tried_.push_back(std::move(run));
    return absl::optional<double>(tried_.back().step_ms_p50());
  }

  const proto::StepProfile& profile_;
  PredictedJob job_;
  std::vector<proto::Run> tried_;
  absl::Status refusal_;  // the first
};

// "3 parameter servers on hosts of their own and one beside each worker"
std::string Name(int servers, const Apart& apart) {
  return absl::StrCat(Count(servers, "parameter server"), " on hosts of their own",
                      apart.mixed ? " and one beside each worker" : "");
}

// What needs no further machine.
struct Free {
  double ms = 0;
  std::string name;
};

absl::optional<Free> FreeOf(const Ways& ways, int workers) {
  const bool beside = ways.beside.has_value() &&
                      (!ways.ring.has_value() || *ways.beside < *ways.ring * (1 - kEqual));
  if (beside) {
    return Free{*ways.beside, absl::StrCat("parameter servers beside all ", workers, " workers")};
  }
  if (ways.ring.has_value()) return Free{*ways.ring, "the ring"};
  return absl::nullopt;
}

// Behind "For net on 4 workers at 1gbit".
std::string Sentence(const Ways& ways, const absl::optional<Free>& free) {
  const std::vector<Apart>& apart = ways.apart;
  int flips = 0, best = 0;  // numbers of servers
  for (int k = 1; k <= static_cast<int>(apart.size()); ++k) {
    const double ms = apart[k - 1].ms;
    if (flips == 0 && (!free.has_value() || ms < free->ms * (1 - kEqual))) flips = k;
    if (flips > 0 && (best == 0 || ms < apart[best - 1].ms * (1 - kEqual))) best = k;
  }
  if (flips == 0) {
    double nearest = 0;
    for (const Apart& way : apart) nearest = nearest == 0 ? way.ms : std::min(nearest, way.ms);
    return absl::StrCat(
        " use ", free->name, ", ", Ms(free->ms), " ms per step",
        apart.empty()
            ? ""
            : absl::StrFormat(": with 1 to %d servers on hosts of their own a step takes %s ms or "
                              "more, so no number of them gains more than %.0f%%",
                              apart.size(), Ms(nearest), 100 * kEqual));
  }
  const Apart& way = apart[best - 1];
  const std::string use = absl::StrCat(" use ", Name(best, way), ", ", Ms(way.ms), " ms per step");
  if (!free.has_value()) {
    return best == 1 ? use : absl::StrCat(use, ", where one takes ", Ms(apart[0].ms), " ms");
  }
  const double gain = 1 - way.ms / free->ms;
  const std::string below =
      flips == 1 ? absl::StrCat("already one server is faster than ", free->name)
                 : absl::StrFormat("with fewer than %d %s is as fast or faster (%s ms)", flips,
                                   free->name, Ms(free->ms));
  const std::string at_flip = best == flips
                                  ? ""
                                  : absl::StrFormat(", with %d the servers begin to win (%s ms)",
                                                    flips, Ms(apart[flips - 1].ms));
  return absl::StrFormat("%s, %.0f%% less than with %s: %s%s", use, 100 * gain, free->name, below,
                         at_flip);
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

absl::StatusOr<Advice> Advise(const proto::StepProfile& profile, const PredictedJob& job,
                              const ServerPlaces& places) {
  Trial trial(profile, job);
  GS_ASSIGN_OR_RETURN(const Ways ways, trial.All(places));
  const int n = job.placed.workers;
  Advice advice;
  advice.sentence =
      absl::StrCat("For ", profile.model(), " on ", Count(n, "worker"), " at ",
                   job.placed.bandwidth, Sentence(ways, FreeOf(ways, n)),
                   ways.ring.has_value() ? "" : "; no ring can do what was asked for", ".");
  advice.tried = trial.TakeTried();
  return advice;
}

}  // namespace gradsync
