#include "benchmarks/comparison/compare_report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/rate.h"
#include "benchmarks/comparison/bandwidth_report.h"
#include "benchmarks/comparison/compare_rounds.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/table.h"

namespace gradsync {
namespace {

constexpr size_t kShortHash = 12;

using Runs = std::vector<const proto::Run*>;

bool Compresses(const proto::Run& run) { return SpecOf(run).codec.compresses(); }

// Whose result depends on the order in which gradients arrive.
bool Asynchronous(const proto::Run& run) { return !SpecOf(run).consistency.bulk(); }

// What tells a run from others with equally many workers.
std::string Name(const proto::Run& run) {
  const PlacedJob job = JobOf(run);
  const std::string name = TopologyName(job.spec.topology);
  std::vector<std::string> details;
  if (job.servers > 0) {
    const bool dedicated = job.placement == Placement::kDedicated;
    details.push_back(absl::StrCat(dedicated ? "" : PlacementName(job.placement) + " ",
                                   Count(job.servers, "server")));
  }
  if (job.spec.link != Link::kNone && job.spec.link != Link::kGrpc) {
    details.push_back(LinkName(job.spec.link));
  }
  if (job.spec.update == UpdateSite::kOwner) details.push_back("update at owner");
  if (Compresses(run)) details.push_back(run.compression());
  if (Asynchronous(run)) details.push_back(run.consistency());
  if (details.empty()) return name;
  return absl::StrCat(name, " (", absl::StrJoin(details, ", "), ")");
}

// Runs that have to end with the same bits: all topologies without compression, but one topology
// under each codec, because a ring rounds at every hop and a server once.
std::string BitsGroup(const proto::Run& run) {
  if (!Compresses(run)) return "";
  return absl::StrCat(run.topology(), " under ", run.compression());
}

bool HasBitsToCompare(const proto::Run& run) {
  if (Asynchronous(run)) return false;
  if (SpecOf(run).topology == Topology::kLocal) return run.workers() == 1;
  return !run.own_order() || run.workers() <= 2;
}

bool OverNccl(const proto::Run& run) { return SpecOf(run).link == Link::kNccl; }

bool OnGpu(const proto::Run& run) { return !run.device().empty() && run.device() != "cpu"; }

std::string WhyNotCompared(const proto::Run& run) {
  if (Asynchronous(run)) return "gradients are applied in the order in which they come";
  if (SpecOf(run).topology == Topology::kLocal) return "its workers do not exchange anything";
  return absl::StrCat(OverNccl(run) ? "NCCL" : "Gloo", " adds in an order of its own");
}

// The hash of each round; of a record without rounds its own.
std::vector<std::string> Hashes(const proto::Run& run) {
  if (run.round_params_sha256().empty()) return {run.params_sha256()};
  return {run.round_params_sha256().begin(), run.round_params_sha256().end()};
}

int Rounds(const proto::Run& run) { return std::max(1, run.round_samples_per_s_size()); }

// Runs that are compared in speed: by bandwidth, the slowest first and none last, and number of
// workers.
std::map<std::pair<double, int>, Runs> GroupForSpeed(const proto::RunRecords& records) {
  std::map<std::pair<double, int>, Runs> groups;
  for (const proto::Run& run : records.runs()) {
    const absl::StatusOr<double> rate = ParseBandwidth(run.bandwidth());
    const double none = std::numeric_limits<double>::infinity();
    groups[{rate.ok() ? *rate : none, run.workers()}].push_back(&run);
  }
  return groups;
}

// Runs that train equally: whose bits may be compared. The network does not matter.
std::map<std::tuple<int, int, int>, Runs> GroupForBits(const proto::RunRecords& records) {
  std::map<std::tuple<int, int, int>, Runs> groups;
  for (const proto::Run& run : records.runs()) {
    groups[{run.workers(), run.steps(), run.batch_size()}].push_back(&run);
  }
  return groups;
}

void JudgeBits(int workers, const std::string& group, const Runs& runs, Verdict* verdict) {
  std::map<std::string, std::vector<std::string>> names_by_hash;
  int compared = 0;
  int rounds = 1;
  for (const proto::Run* run : runs) {
    if (!HasBitsToCompare(*run)) {
      absl::StrAppend(&verdict->text, "  bits: ", Name(*run), " with ", Count(workers, "worker"),
                      " is not compared: ", WhyNotCompared(*run), "\n");
      continue;
    }
    const std::string name = absl::StrCat(
        Name(*run), run->bandwidth().empty() ? "" : absl::StrCat(" at ", run->bandwidth()));
    for (const std::string& hash : Hashes(*run)) {
      std::vector<std::string>& names = names_by_hash[hash];
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    ++compared;
    rounds = std::max(rounds, Rounds(*run));
  }
  const std::string with =
      absl::StrCat(group.empty() ? "" : " of ", group, " with ", Count(workers, "worker"),
                   rounds > 1 ? absl::StrCat(", ", rounds, " rounds each") : "");
  if (compared == 1 && names_by_hash.size() == 1) {
    absl::StrAppend(&verdict->text, "  bits: only one run", with, ", nothing to compare\n");
  } else if (names_by_hash.size() == 1) {
    absl::StrAppend(&verdict->text, "  bits: identical in all ", compared, " runs", with, "\n");
  } else if (names_by_hash.size() > 1 && OnGpu(*runs[0])) {
    // The same job can end with other bits each time; that all workers of one agree is checked
    // there.
    absl::StrAppend(&verdict->text, "  bits: no two of ", compared, " runs", with,
                    " need agree on a GPU, whose convolutions may add in another order each time; ",
                    names_by_hash.size(), " results, each equal on all workers\n");
  } else if (names_by_hash.size() > 1) {
    verdict->bits_agree = false;
    absl::StrAppend(&verdict->text, "  bits: DIFFER between the ", compared, " runs", with, ": ");
    std::vector<std::string> sides;
    for (const auto& [hash, names] : names_by_hash) {
      sides.push_back(
          absl::StrCat(hash.substr(0, kShortHash), " in ", absl::StrJoin(names, " and ")));
    }
    absl::StrAppend(&verdict->text, absl::StrJoin(sides, ", "), "\n");
  }
}

void JudgeBits(int workers, const Runs& runs, Verdict* verdict) {
  std::map<std::string, Runs> groups;
  for (const proto::Run* run : runs) groups[BitsGroup(*run)].push_back(run);
  for (const auto& [group, members] : groups) JudgeBits(workers, group, members, verdict);
}

// Of those over NCCL, or of the others.
const proto::Run* Fastest(const Runs& runs, Topology topology, bool over_nccl) {
  const proto::Run* best = nullptr;
  for (const proto::Run* run : runs) {
    if (SpecOf(*run).topology != topology || OverNccl(*run) != over_nccl) continue;
    if (over_nccl && !run->invalid().empty()) continue;
    if (best == nullptr || run->samples_per_s() > best->samples_per_s()) best = run;
  }
  return best;
}

std::string Lead(double ratio) {
  if (ratio >= 2) return absl::StrFormat("%.1f times as fast as ", ratio);
  const double percent = 100 * (ratio - 1);
  return absl::StrFormat("%.*f %% faster than ", percent < 0.95 ? 1 : 0, percent);
}

// Where a race was run, and what else its line says.
struct Race {
  std::string where;  // "with 2 workers", "with 3 workers at 400mbit"
  std::string note;   // ends the line
};

// The same batch on both sides, so samples/s and step times compare alike.
void JudgeSpeed(const Race& race, const proto::Run* faster, const proto::Run* slower,
                Verdict* verdict) {
  if (faster == nullptr || slower == nullptr) return;
  if (faster->samples_per_s() <= 0 || slower->samples_per_s() <= 0) return;
  const int rounds = std::min(Rounds(*faster), Rounds(*slower));
  MedianSpread ratio = RatioOverRounds(*faster, *slower);
  if (ratio.p50 == 0) ratio.p50 = faster->samples_per_s() / slower->samples_per_s();
  if (ratio.p50 < 1) {
    std::swap(faster, slower);
    ratio = {1 / ratio.p50, ratio.high > 0 ? 1 / ratio.high : 0, ratio.low > 0 ? 1 / ratio.low : 0};
  }
  const std::string begin = absl::StrCat("  speed: ", race.where, " ");
  const std::string rates = absl::StrFormat("%.1f against %.1f samples/s", faster->samples_per_s(),
                                            slower->samples_per_s());
  if (rounds < 2) {
    absl::StrAppend(&verdict->text, begin, "no difference shown by one round between ",
                    Name(*faster), " and ", Name(*slower), ": ", rates, race.note, "\n");
    return;
  }
  const std::string ratios =
      absl::StrFormat(", %.3f times (%.3f to %.3f)", ratio.p50, ratio.low, ratio.high);
  if (ShowsDifference(ratio, rounds)) {
    absl::StrAppend(&verdict->text, begin, Name(*faster), " was ", Lead(ratio.p50), Name(*slower),
                    ": ", rates, ratios, race.note, "\n");
  } else {
    absl::StrAppend(&verdict->text, begin, "no difference shown between ", Name(*faster), " and ",
                    Name(*slower), ": ", rates, ratios, race.note, "\n");
  }
}

// One worker has nobody to exchange with. Topologies are compared where both go through the host:
// the ring alone can leave it out.
void JudgeOneHost(const Runs& runs, const std::string& where, Verdict* verdict) {
  const proto::Run* const servers = Fastest(runs, Topology::kPs, /*over_nccl=*/false);
  const proto::Run* const ring = Fastest(runs, Topology::kRing, /*over_nccl=*/false);
  const proto::Run* const nccl = Fastest(runs, Topology::kRing, /*over_nccl=*/true);
  JudgeSpeed(
      {where, nccl == nullptr ? "" : "; both go through the host: a comparison of topologies"},
      servers, ring, verdict);
  const proto::Run* host = servers;
  if (host == nullptr || (ring != nullptr && ring->samples_per_s() > host->samples_per_s())) {
    host = ring;
  }
  JudgeSpeed({where,
              "; NCCL between GPUs against a way through the host: a comparison of transports, not "
              "of topologies"},
             nccl, host, verdict);
}

// How many times as fast as `other` the simulator says that `run` is, or nothing.
std::string Predicted(const proto::RunRecords& records, const proto::Run* run,
                      const proto::Run* other) {
  if (run == nullptr || other == nullptr) return "";
  if (run->samples_per_s() < other->samples_per_s()) std::swap(run, other);
  const proto::Run* const one = PredictionOf(records, *run);
  const proto::Run* const two = PredictionOf(records, *other);
  if (one == nullptr || two == nullptr) return "";
  return absl::StrFormat("; predicted %.3f times", one->samples_per_s() / two->samples_per_s());
}

// On a network servers may have hosts, and so interfaces, that the ring has not: that is another
// comparison than one on the same hosts.
void JudgeNetwork(const proto::RunRecords& records, const Runs& runs, const std::string& where,
                  Verdict* verdict) {
  Runs same_hosts;
  Runs more_hosts;
  Runs rings;
  size_t invalid = 0;
  for (const proto::Run* run : runs) {
    if (!run->invalid().empty()) {
      ++invalid;
      continue;
    }
    (SpecOf(*run).topology == Topology::kRing ? rings
     : HostsOfRun(*run) == run->workers()     ? same_hosts
                                              : more_hosts)
        .push_back(run);
  }
  if (invalid > 0) {
    absl::StrAppend(&verdict->text, "  speed: ", where, " ", invalid, " of ",
                    Count(static_cast<int>(runs.size()), "run"),
                    " left out as INVALID, see above\n");
  }
  const proto::Run* const ring = Fastest(rings, Topology::kRing, /*over_nccl=*/false);
  const proto::Run* const beside = Fastest(same_hosts, Topology::kPs, /*over_nccl=*/false);
  const proto::Run* const apart = Fastest(more_hosts, Topology::kPs, /*over_nccl=*/false);
  JudgeSpeed({absl::StrCat(where, ", on the same hosts,"), Predicted(records, beside, ring)},
             beside, ring, verdict);
  if (apart == nullptr) return;
  JudgeSpeed({absl::StrCat(where, ", with servers on ",
                           Count(HostsOfRun(*apart) - apart->workers(), "host"), " more,"),
              Predicted(records, apart, ring)},
             apart, ring, verdict);
}

void JudgeSpeed(const proto::RunRecords& records, int workers, const Runs& runs, Verdict* verdict) {
  if (workers < 2) return;
  const std::string& bandwidth = runs[0]->bandwidth();
  const std::string where =
      absl::StrCat(bandwidth.empty() ? "" : absl::StrCat("at ", bandwidth, " "), "with ",
                   Count(workers, "worker"));
  if (bandwidth.empty()) {
    JudgeOneHost(runs, where, verdict);
  } else {
    JudgeNetwork(records, runs, where, verdict);
  }
}

// One verdict per codec: compression is not what tells topologies apart.
void JudgeSpeedOfEach(const proto::RunRecords& records, int workers, const Runs& runs,
                      Verdict* verdict) {
  std::map<std::string, Runs> groups;
  for (const proto::Run* run : runs) {
    if (!Asynchronous(*run)) groups[Compresses(*run) ? run->compression() : ""].push_back(run);
  }
  for (const auto& [codec, members] : groups) JudgeSpeed(records, workers, members, verdict);
}

std::string DeviceAndPrecision(const proto::Run& run) {
  std::string text = run.device().empty() ? "cpu" : run.device();
  if (PrecisionOf(run) != Precision::kFp32) absl::StrAppend(&text, " ", run.precision());
  return text;
}

std::string Rate(const proto::Run& run) {
  const std::string rate = absl::StrFormat("%.1f", run.samples_per_s());
  if (Rounds(run) < 2) return rate;
  return absl::StrFormat("%s (%.1f-%.1f)", rate, run.samples_per_s_low(), run.samples_per_s_high());
}

// Which columns there are besides those that every table has.
struct Extras {
  bool codec = false;
  bool placement = false;  // and bandwidth
  bool device = false;
};

std::vector<std::string> Row(const proto::Run& run, const Extras& with) {
  std::vector<std::string> row = {
      run.topology(),
      run.link().empty() ? "-" : run.link(),
      Asynchronous(run) ? absl::StrCat(run.update(), " ", run.consistency()) : run.update(),
      run.servers() == 0 ? "-" : absl::StrCat(run.servers()),
      absl::StrCat(run.workers()),
      Rate(run),
      absl::StrFormat("%.1f (%.1f-%.1f)", run.step_ms_p50(), run.step_ms_p10(), run.step_ms_p90()),
      absl::StrFormat("%.1f", run.exposed_ms_p50()),
      run.scaling_efficiency() > 0 ? absl::StrFormat("%.2f", run.scaling_efficiency()) : "-",
      !run.bytes_uncounted() ? absl::StrFormat("%.2f", run.wire_tx_bytes_max_node() / 1e6) : "-",
      absl::StrFormat("%.0f", run.cpu_ms_per_step()),
      absl::StrFormat("%.4f", run.final_loss()),
      run.params_sha256().substr(0, kShortHash)};
  const bool placed = run.servers() > 0 && !run.bandwidth().empty();
  if (with.placement) row.insert(row.begin() + 4, placed ? run.placement() : "-");
  if (with.codec) row.insert(row.begin() + 3, CodecName(SpecOf(run).codec));
  if (with.device) row.insert(row.begin() + 2, DeviceAndPrecision(run));
  if (with.placement) {
    row.insert(row.begin(), run.bandwidth().empty() ? "none" : run.bandwidth());
  }
  return row;
}

}  // namespace

std::string FormatRuns(const proto::RunRecords& records) {
  std::vector<Column> columns = {
      {"topology", Align::kLeft},
      {"link", Align::kLeft},
      {"update\nat", Align::kLeft},
      {"servers"},
      {"workers"},
      {"samples\nper s", Align::kRight, true},
      {"step ms\n(p10-p90)"},
      {"exposed\nms"},
      {"effi-\nciency"},
      {"wire MB per step,\nbusiest node"},
      {"CPU ms\nper step"},
      {"final\nloss"},
      {"params\nsha256", Align::kLeft},
  };
  Extras with;
  std::string notes;
  int rounds = 1;
  for (const proto::Run& run : records.runs()) {
    rounds = std::max(rounds, Rounds(run));
    with.codec = with.codec || Compresses(run);
    with.placement = with.placement || !run.bandwidth().empty();
    with.device = with.device || OnGpu(run) || DeviceAndPrecision(run) != "cpu";
    if (!run.nccl_version().empty()) {
      absl::StrAppend(&notes, "NCCL ", run.nccl_version(), ", ", Name(run), " with ",
                      Count(run.workers(), "worker"), ": asked for ",
                      run.nccl_asked().empty() ? "nothing" : run.nccl_asked(), ", chose ",
                      run.nccl_chosen(), "\n");
    }
    if (run.invalid().empty()) continue;
    absl::StrAppend(&notes, "INVALID: ", Name(run), " with ", Count(run.workers(), "worker"),
                    run.bandwidth().empty() ? "" : absl::StrCat(" at ", run.bandwidth()), ": ",
                    run.invalid(), "\n");
  }
  if (with.placement) columns.insert(columns.begin() + 4, {"placement", Align::kLeft});
  if (with.codec) columns.insert(columns.begin() + 3, {"codec", Align::kLeft});
  if (with.device) columns.insert(columns.begin() + 2, {"device", Align::kLeft});
  if (with.placement) columns.insert(columns.begin(), {"emulated\nlinks", Align::kLeft});
  std::vector<std::vector<std::string>> rows;
  for (const proto::Run& run : records.runs()) rows.push_back(Row(run, with));
  return absl::StrCat(
      FormatTable(columns, rows),
      rounds > 1 ? absl::StrCat("samples per s: median over rounds, in brackets ",
                                DescribeInterval(rounds), ".\n")
                 : "",
      "step: median over measured steps, each as long as on its slowest worker. exposed: waiting "
      "for communication\nthat nothing hid. efficiency: samples/s over workers times the samples/s "
      "of one worker in the same setup.\nwire: payload that the worker or server that sends most "
      "sends. CPU: of all processes of the job together.\n",
      notes);
}

Verdict JudgeRuns(const proto::RunRecords& records) {
  Verdict verdict;
  verdict.text = "VERDICT\n";
  bool servers = false;
  int rounds = 1;
  for (const auto& [group, runs] : GroupForSpeed(records)) {
    JudgeSpeedOfEach(records, group.second, runs, &verdict);
    for (const proto::Run* run : runs) {
      servers = servers || (run->servers() > 0 && run->bandwidth().empty());
      rounds = std::max(rounds, Rounds(*run));
    }
  }
  for (const auto& [group, runs] : GroupForBits(records)) {
    JudgeBits(std::get<0>(group), runs, &verdict);
  }
  if (rounds > 1) {
    absl::StrAppend(&verdict.text, "  Times are medians of ratios within a round, in brackets ",
                    DescribeInterval(rounds),
                    ";\n  a difference is shown where that leaves out 1.\n");
  }
  if (servers) {
    absl::StrAppend(
        &verdict.text,
        "  On one machine without an emulated network the servers use the workers' cores "
        "(see the CPU column), and\n  no network is the bottleneck: on a cluster the "
        "order may be another.\n");
  }
  return verdict;
}

}  // namespace gradsync
