#include "benchmarks/comparison/compare_report.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "benchmarks/records/table.h"

namespace gradsync {
namespace {

constexpr size_t kShortHash = 12;
// Medians closer than this are called equal.
constexpr double kTie = 0.01;

using Runs = std::vector<const proto::Run*>;

std::string Count(int count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

bool Compresses(const proto::Run& run) {
  return !run.compression().empty() && run.compression() != "none";
}

// Whose result depends on the order in which gradients arrive.
bool Asynchronous(const proto::Run& run) {
  return !run.consistency().empty() && run.consistency() != "bsp";
}

// What tells a run from others with equally many workers.
std::string Name(const proto::Run& run) {
  std::string name = run.topology();
  std::vector<std::string> details;
  const bool placed = !run.placement().empty() && run.placement() != "dedicated";
  if (run.servers() > 0) {
    details.push_back(
        absl::StrCat(placed ? run.placement() + " " : "", Count(run.servers(), "server")));
  }
  if (!run.link().empty() && run.link() != "grpc") details.push_back(run.link());
  if (run.update() == "owner") details.push_back("update at owner");
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
  if (run.topology() == "local") return run.workers() == 1;
  return !run.own_order() || run.workers() <= 2;
}

bool OnGpu(const proto::Run& run) { return !run.device().empty() && run.device() != "cpu"; }

std::string WhyNotCompared(const proto::Run& run) {
  if (Asynchronous(run)) return "gradients are applied in the order in which they come";
  if (run.topology() == "local") return "its workers do not exchange anything";
  return absl::StrCat(run.link() == "nccl" ? "NCCL" : "Gloo", " adds in an order of its own");
}

std::map<int, Runs> GroupByWorkers(const proto::RunRecords& records) {
  std::map<int, Runs> groups;
  for (const proto::Run& run : records.runs()) groups[run.workers()].push_back(&run);
  return groups;
}

void JudgeBits(int workers, const std::string& group, const Runs& runs, Verdict* verdict) {
  std::map<std::string, std::vector<std::string>> names_by_hash;
  int compared = 0;
  for (const proto::Run* run : runs) {
    if (!HasBitsToCompare(*run)) {
      absl::StrAppend(&verdict->text, "  bits: ", Name(*run), " with ", Count(workers, "worker"),
                      " is not compared: ", WhyNotCompared(*run), "\n");
      continue;
    }
    names_by_hash[run->params_sha256()].push_back(Name(*run));
    ++compared;
  }
  const std::string with =
      absl::StrCat(group.empty() ? "" : " of ", group, " with ", Count(workers, "worker"));
  if (compared == 1) {
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

bool OverNccl(const proto::Run& run) { return run.link() == "nccl"; }

// Of those over NCCL, or of the others.
const proto::Run* Fastest(const Runs& runs, absl::string_view topology, bool over_nccl) {
  const proto::Run* best = nullptr;
  for (const proto::Run* run : runs) {
    if (run->topology() != topology || OverNccl(*run) != over_nccl) continue;
    if (over_nccl && !run->invalid().empty()) continue;
    if (best == nullptr || run->samples_per_s() > best->samples_per_s()) best = run;
  }
  return best;
}

std::string Lead(double ratio) {
  if (ratio >= 2) return absl::StrFormat("%.1f times as fast as ", ratio);
  return absl::StrFormat("%.0f %% faster than ", 100 * (ratio - 1));
}

// The same batch on all sides, so samples/s and step times compare alike. `note` ends the line.
void JudgeSpeed(int workers, const proto::Run* faster, const proto::Run* slower,
                absl::string_view note, Verdict* verdict) {
  if (faster == nullptr || slower == nullptr || slower->samples_per_s() <= 0) return;
  if (faster->samples_per_s() < slower->samples_per_s()) std::swap(faster, slower);
  const double ratio = faster->samples_per_s() / slower->samples_per_s();
  const std::string rates = absl::StrFormat("%.1f against %.1f samples/s", faster->samples_per_s(),
                                            slower->samples_per_s());
  const std::string with = absl::StrCat("  speed: with ", Count(workers, "worker"), " ");
  if (ratio < 1 + kTie) {
    absl::StrAppend(&verdict->text, with, Name(*faster), " and ", Name(*slower),
                    " were equally fast: ", rates, note, "\n");
    return;
  }
  const bool overlap = slower->step_ms_p10() < faster->step_ms_p90();
  absl::StrAppend(&verdict->text, with, Name(*faster), " was ", Lead(ratio), Name(*slower), ": ",
                  rates, overlap ? " (their steps' p10-p90 overlap)" : "", note, "\n");
}

// One worker has nobody to exchange with. Topologies are compared where both go through the host:
// the ring alone can leave it out.
void JudgeSpeed(int workers, const Runs& runs, Verdict* verdict) {
  if (workers < 2) return;
  const proto::Run* const servers = Fastest(runs, "ps", /*over_nccl=*/false);
  const proto::Run* const ring = Fastest(runs, "ring", /*over_nccl=*/false);
  const proto::Run* const nccl = Fastest(runs, "ring", /*over_nccl=*/true);
  JudgeSpeed(workers, servers, ring,
             nccl == nullptr ? "" : "; both go through the host: a comparison of topologies",
             verdict);
  const proto::Run* host = servers;
  if (host == nullptr || (ring != nullptr && ring->samples_per_s() > host->samples_per_s())) {
    host = ring;
  }
  JudgeSpeed(workers, nccl, host,
             "; NCCL between GPUs against a way through the host: a comparison of transports, not "
             "of topologies",
             verdict);
}

// One verdict per codec: compression is not what tells topologies apart.
void JudgeSpeedOfEach(int workers, const Runs& runs, Verdict* verdict) {
  std::map<std::string, Runs> groups;
  for (const proto::Run* run : runs) {
    if (!Asynchronous(*run)) groups[Compresses(*run) ? run->compression() : ""].push_back(run);
  }
  for (const auto& [codec, members] : groups) JudgeSpeed(workers, members, verdict);
}

std::string DeviceAndPrecision(const proto::Run& run) {
  std::string text = run.device().empty() ? "cpu" : run.device();
  if (!run.precision().empty() && run.precision() != "fp32") {
    absl::StrAppend(&text, " ", run.precision());
  }
  return text;
}

// Which columns there are besides those that every table has.
struct Extras {
  bool codec = false;
  bool placement = false;
  bool device = false;
};

std::vector<std::string> Row(const proto::Run& run, const Extras& with) {
  std::vector<std::string> row = {
      run.topology(),
      run.link().empty() ? "-" : run.link(),
      Asynchronous(run) ? absl::StrCat(run.update(), " ", run.consistency()) : run.update(),
      run.servers() == 0 ? "-" : absl::StrCat(run.servers()),
      absl::StrCat(run.workers()),
      absl::StrFormat("%.1f", run.samples_per_s()),
      absl::StrFormat("%.1f (%.1f-%.1f)", run.step_ms_p50(), run.step_ms_p10(), run.step_ms_p90()),
      absl::StrFormat("%.1f", run.exposed_ms_p50()),
      run.scaling_efficiency() > 0 ? absl::StrFormat("%.2f", run.scaling_efficiency()) : "-",
      !run.bytes_uncounted() ? absl::StrFormat("%.2f", run.wire_tx_bytes_max_node() / 1e6) : "-",
      absl::StrFormat("%.0f", run.cpu_ms_per_step()),
      absl::StrFormat("%.4f", run.final_loss()),
      run.params_sha256().substr(0, kShortHash)};
  const bool placed = run.servers() > 0 && !run.placement().empty();
  if (with.placement) row.insert(row.begin() + 4, placed ? run.placement() : "-");
  if (with.codec) row.insert(row.begin() + 3, Compresses(run) ? run.compression() : "none");
  if (with.device) row.insert(row.begin() + 2, DeviceAndPrecision(run));
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
  for (const proto::Run& run : records.runs()) {
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
    absl::StrAppend(&notes, "INVALID: ", Name(run), " with ", Count(run.workers(), "worker"), ": ",
                    run.invalid(), "\n");
  }
  if (with.placement) columns.insert(columns.begin() + 4, {"placement", Align::kLeft});
  if (with.codec) columns.insert(columns.begin() + 3, {"codec", Align::kLeft});
  if (with.device) columns.insert(columns.begin() + 2, {"device", Align::kLeft});
  std::vector<std::vector<std::string>> rows;
  for (const proto::Run& run : records.runs()) rows.push_back(Row(run, with));
  return absl::StrCat(
      FormatTable(columns, rows),
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
  for (const auto& [workers, runs] : GroupByWorkers(records)) {
    JudgeBits(workers, runs, &verdict);
    JudgeSpeedOfEach(workers, runs, &verdict);
    for (const proto::Run* run : runs) {
      servers = servers || (run->servers() > 0 && run->bandwidth().empty());
    }
  }
  if (servers) {
    absl::StrAppend(&verdict.text,
                    "  On one machine the servers use the workers' cores (see the CPU column), and "
                    "no network is the bottleneck:\n  on a cluster the order may be another.\n");
  }
  return verdict;
}

}  // namespace gradsync
