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
#include "benchmarks/comparison/compare_rounds.h"
#include "benchmarks/comparison/decision.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"
#include "core/group/mesh.h"
#include "core/program/byte_sizes.h"

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
  if (job.zero > 0) {
    details.push_back(absl::StrCat("zero=", job.zero));
  } else if (job.spec.update == UpdateSite::kOwner) {
    details.push_back("update at owner");
  }
  if (const std::string how = Describe(job.arrangement); !how.empty()) details.push_back(how);
  if (Compresses(run)) details.push_back(run.compression());
  if (Asynchronous(run)) details.push_back(run.consistency());
  if (details.empty()) return name;
  return absl::StrCat(name, " (", absl::StrJoin(details, ", "), ")");
}

Mesh MeshOf(const proto::Run& run) {
  return Mesh::Parse(run.mesh(), run.workers()).value_or(Mesh::OfData(run.workers()));
}

// "2 workers"; on meshes those that train on other samples, with how many micro-batches they do so.
std::string Trainers(const proto::Run& run) {
  if (run.mesh().empty()) return Count(run.workers(), "worker");
  Arrangement batches;
  batches.micro_batches = run.micro_batches();
  return absl::StrCat(Count(MeshOf(run).replicas(), "replica"), " of ", Describe(batches));
}

// Runs that have to end with the same bits: all topologies without compression, but one topology
// under each codec, because a ring rounds at every hop and a server once.
//
// Slices add up parts of what whole layers add up at once, and replicas of a process parts of a batch.
std::string BitsGroup(const proto::Run& run) {
  if (Compresses(run)) return absl::StrCat(run.topology(), " under ", run.compression());
  if (run.data_parallel() > 1) return absl::StrCat(run.data_parallel(), " replicas in each");
  const int slices = MeshOf(run).size(MeshDimension::kTensor);
  return slices > 1 ? absl::StrCat("tensor=", slices) : "";
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

// Of all ranks.
double SamplesOfStep(const proto::Run& run) {
  return static_cast<double>(MeshOf(run).replicas()) * run.batch_size() *
         std::max(1, run.micro_batches());
}

int Rounds(const proto::Run& run) { return std::max(1, run.round_samples_per_s_size()); }

// The slowest first and none last.
double OrderOfBandwidth(const proto::Run& run) {
  return ParseBandwidth(run.bandwidth()).value_or(std::numeric_limits<double>::infinity());
}

std::string CodecOf(const proto::Run& run) { return Compresses(run) ? run.compression() : ""; }

// Topologies that are compared in speed: by bandwidth, by number of workers, of which one has nobody
// to exchange with, and by codec and arrangement, which are not what tells topologies apart.
std::map<std::tuple<double, int, std::string, std::string>, Runs> GroupForSpeed(
    const proto::RunRecords& records) {
  std::map<std::tuple<double, int, std::string, std::string>, Runs> groups;
  for (const proto::Run& run : records.runs()) {
    if (Asynchronous(run) || run.workers() < 2) continue;
    groups[{OrderOfBandwidth(run), run.workers(), CodecOf(run), Describe(JobOf(run).arrangement)}]
        .push_back(&run);
  }
  return groups;
}

// What arrangements have in common that are compared in speed.
struct Equipment {
  double bandwidth = 0;
  int workers = 0;
  int hosts = 0;  // of a network, each with an interface; else 0
  std::string codec;
  double samples = 0;  // of a step
  bool meets = false;  // whether workers exchange anything

  bool operator<(const Equipment& other) const {
    return std::tie(bandwidth, workers, hosts, codec, samples, meets) <
           std::tie(other.bandwidth, other.workers, other.hosts, other.codec, other.samples,
                    other.meets);
  }
};

// One worker may have replicas, and so arrangements, too.
std::map<Equipment, Runs> GroupForArrangements(const proto::RunRecords& records) {
  std::map<Equipment, Runs> groups;
  for (const proto::Run& run : records.runs()) {
    if (Asynchronous(run)) continue;
    const int hosts = run.bandwidth().empty() ? 0 : HostCount(JobOf(run));
    groups[{OrderOfBandwidth(run), run.workers(), hosts, CodecOf(run), SamplesOfStep(run),
            SpecOf(run).topology != Topology::kLocal}]
        .push_back(&run);
  }
  return groups;
}

// Runs that train equally: whose bits may be compared. The network does not matter.
std::map<std::tuple<int, int, int, int, std::string>, Runs> GroupForBits(
    const proto::RunRecords& records) {
  std::map<std::tuple<int, int, int, int, std::string>, Runs> groups;
  for (const proto::Run& run : records.runs()) {
    groups[{MeshOf(run).replicas(), run.steps(), run.batch_size(), run.micro_batches(),
            BitsGroup(run)}]
        .push_back(&run);
  }
  return groups;
}

void JudgeBits(const Runs& runs, Verdict* verdict) {
  const std::string group = BitsGroup(*runs[0]);
  const std::string workers = Trainers(*runs[0]);
  std::map<std::string, std::vector<std::string>> names_by_hash;
  int compared = 0;
  int rounds = 1;
  for (const proto::Run* run : runs) {
    if (!HasBitsToCompare(*run)) {
      absl::StrAppend(&verdict->text, "  bits: ", Name(*run), " with ", workers,
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
      absl::StrCat(group.empty() ? "" : " of ", group, " with ", workers,
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

// The same batch on both sides, so samples/s and step times compare alike. `where` begins the line:
// "with 2 workers", "at 400mbit with 3 workers"; `note` ends it.
void JudgeSpeed(const std::string& where, const proto::Run* faster, const proto::Run* slower,
                const std::string& note, Verdict* verdict) {
  if (faster == nullptr || slower == nullptr) return;
  if (faster->samples_per_s() <= 0 || slower->samples_per_s() <= 0) return;
  if (faster->samples_per_s() < slower->samples_per_s()) std::swap(faster, slower);
  std::vector<double> ratios = RatiosOverRounds(*faster, *slower);
  if (ratios.empty()) ratios = {faster->samples_per_s() / slower->samples_per_s()};
  const Decision decision = Decide(ratios, verdict->decisions);
  absl::StrAppendFormat(&verdict->text, "  speed: %s %s: %.1f against %.1f samples/s", where,
                        Describe(decision, Name(*faster), Name(*slower)), faster->samples_per_s(),
                        slower->samples_per_s());
  if (ratios.size() > 1) {
    absl::StrAppendFormat(&verdict->text, ", %.3f times (%.3f to %.3f)", decision.ratio,
                          decision.low, decision.high);
  }
  absl::StrAppend(&verdict->text, note, "\n");
}

// Topologies are compared where both go through the host: the ring alone can leave it out.
void JudgeOneHost(const Runs& runs, const std::string& where, Verdict* verdict) {
  const proto::Run* const servers = Fastest(runs, Topology::kPs, /*over_nccl=*/false);
  const proto::Run* const ring = Fastest(runs, Topology::kRing, /*over_nccl=*/false);
  const proto::Run* const nccl = Fastest(runs, Topology::kRing, /*over_nccl=*/true);
  JudgeSpeed(where, servers, ring,
             nccl == nullptr ? "" : "; both go through the host: a comparison of topologies",
             verdict);
  const proto::Run* host = servers;
  if (host == nullptr || (ring != nullptr && ring->samples_per_s() > host->samples_per_s())) {
    host = ring;
  }
  JudgeSpeed(where, nccl, host,
             "; NCCL between GPUs against a way through the host: a comparison of transports, not "
             "of topologies",
             verdict);
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

// The fastest of each arrangement beside the fastest of all.
void JudgeArrangements(const Runs& runs, const std::string& where, Verdict* verdict) {
  std::map<std::string, const proto::Run*> fastest;
  const proto::Run* best = nullptr;
  for (const proto::Run* run : runs) {
    if (!run->invalid().empty()) continue;
    const proto::Run*& of_kind = fastest[Describe(JobOf(*run).arrangement)];
    if (of_kind == nullptr || run->samples_per_s() > of_kind->samples_per_s()) of_kind = run;
    if (best == nullptr || run->samples_per_s() > best->samples_per_s()) best = run;
  }
  for (const auto& [kind, run] : fastest) {
    if (run != best) JudgeSpeed(where, best, run, "", verdict);
  }
}

// On a network servers may have hosts, and so interfaces, that the ring has not: that is another
// comparison than one on the same hosts.
void JudgeNetwork(const proto::RunRecords& records, const Runs& runs, const std::string& where,
                  Verdict* verdict) {
  Runs same_hosts;
  Runs more_hosts;
  for (const proto::Run* run : runs) {
    if (!run->invalid().empty()) continue;
    (HostCount(JobOf(*run)) == run->workers() ? same_hosts : more_hosts).push_back(run);
  }
  const size_t invalid = runs.size() - same_hosts.size() - more_hosts.size();
  if (invalid > 0) {
    absl::StrAppend(&verdict->text, "  speed: ", where, " ", invalid, " of ",
                    Count(static_cast<int>(runs.size()), "run"),
                    " left out as INVALID, see above\n");
  }
  const proto::Run* const ring = Fastest(same_hosts, Topology::kRing, /*over_nccl=*/false);
  const proto::Run* const beside = Fastest(same_hosts, Topology::kPs, /*over_nccl=*/false);
  const proto::Run* const apart = Fastest(more_hosts, Topology::kPs, /*over_nccl=*/false);
  JudgeSpeed(absl::StrCat(where, ", on the same hosts,"), beside, ring,
             Predicted(records, beside, ring), verdict);
  if (apart == nullptr) return;
  JudgeSpeed(absl::StrCat(where, ", with servers on ",
                          Count(HostCount(JobOf(*apart)) - apart->workers(), "host"), " more,"),
             apart, ring, Predicted(records, apart, ring), verdict);
}

std::string DeviceAndPrecision(const proto::Run& run) {
  std::string text = run.device().empty() ? "cpu" : run.device();
  if (PrecisionOf(run) != Precision::kFp32) absl::StrAppend(&text, " ", run.precision());
  return text;
}

// What stands below the table about single runs.
std::string Notes(const proto::RunRecords& records) {
  std::string notes;
  for (const proto::Run& run : records.runs()) {
    const std::string name = absl::StrCat(Name(run), " with ", Count(run.workers(), "worker"));
    if (!run.nccl_version().empty()) {
      absl::StrAppend(&notes, "NCCL ", run.nccl_version(), ", ", name, ": asked for ",
                      run.nccl_asked().empty() ? "nothing" : run.nccl_asked(), ", chose ",
                      run.nccl_chosen(), "\n");
    }
    if (run.invalid().empty()) continue;
    absl::StrAppend(&notes, "INVALID: ", name, run.bandwidth().empty() ? "" : " at ",
                    run.bandwidth(), ": ", run.invalid(), "\n");
  }
  return notes;
}

int MostRounds(const proto::RunRecords& records) {
  int rounds = 1;
  for (const proto::Run& run : records.runs()) rounds = std::max(rounds, Rounds(run));
  return rounds;
}

}  // namespace

std::string FormatRuns(const proto::RunRecords& records) {
  using Run = proto::Run;
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows(records.runs_size());
  const auto add = [&](const Column& column, const auto& cell) {
    columns.push_back(column);
    for (int i = 0; i < records.runs_size(); ++i) rows[i].push_back(cell(records.runs(i)));
  };
  const auto any = [&records](bool (*has)(const Run& run)) {
    return std::any_of(records.runs().begin(), records.runs().end(), has);
  };
  const bool networks = any([](const Run& run) { return !run.bandwidth().empty(); });
  if (networks) {
    add({"emulated\nlinks", Align::kLeft},
        [](const Run& run) { return run.bandwidth().empty() ? "none" : run.bandwidth(); });
  }
  add({"topology", Align::kLeft}, [](const Run& run) { return run.topology(); });
  add({"link", Align::kLeft}, [](const Run& run) { return run.link().empty() ? "-" : run.link(); });
  if (any([](const Run& run) { return DeviceAndPrecision(run) != "cpu"; })) {
    add({"device", Align::kLeft}, DeviceAndPrecision);
  }
  add({"update\nat", Align::kLeft}, [](const Run& run) {
    return Asynchronous(run) ? absl::StrCat(run.update(), " ", run.consistency()) : run.update();
  });
  if (any([](const Run& run) { return run.zero() > 0; })) {
    add({"zero"}, [](const Run& run) { return absl::StrCat(run.zero()); });
  }
  if (any([](const Run& run) { return !run.mesh().empty(); })) {
    add({"mesh", Align::kLeft}, [](const Run& run) { return run.mesh(); });
    add({"schedule", Align::kLeft},
        [](const Run& run) { return run.split().empty() ? "-" : run.pipeline_schedule(); });
    add({"micro-\nbatches"},
        [](const Run& run) { return absl::StrCat(run.micro_batches(), " x ", run.batch_size()); });
    add({"cut\nbefore", Align::kLeft},
        [](const Run& run) { return run.split().empty() ? "-" : run.split(); });
  }
  if (any([](const Run& run) { return run.data_parallel() > 1; })) {
    add({"replicas\nin each"},
        [](const Run& run) { return absl::StrCat(std::max(1, run.data_parallel())); });
  }
  if (any(Compresses)) {
    add({"codec", Align::kLeft}, [](const Run& run) { return CodecName(SpecOf(run).codec); });
  }
  add({"servers"},
      [](const Run& run) { return run.servers() == 0 ? "-" : absl::StrCat(run.servers()); });
  if (networks) {
    add({"placement", Align::kLeft}, [](const Run& run) {
      return run.servers() > 0 && !run.bandwidth().empty() ? run.placement() : "-";
    });
  }
  add({"workers"}, [](const Run& run) { return absl::StrCat(run.workers()); });
  add({"samples\nper s", Align::kRight, true}, FormatRate);
  add({"step ms\n(p10-p90)"}, [](const Run& run) {
    return absl::StrFormat("%.1f (%.1f-%.1f)", run.step_ms_p50(), run.step_ms_p10(),
                           run.step_ms_p90());
  });
  add({"exposed\nms"},
      [](const Run& run) { return absl::StrFormat("%.1f", run.exposed_ms_p50()); });
  add({"effi-\nciency"}, [](const Run& run) {
    return run.scaling_efficiency() > 0 ? absl::StrFormat("%.2f", run.scaling_efficiency()) : "-";
  });
  add({"wire MB per step,\nbusiest node"}, [](const Run& run) {
    return run.bytes_uncounted() ? "-"
                                 : absl::StrFormat("%.2f", run.wire_tx_bytes_max_node() / 1e6);
  });
  add({"CPU ms\nper step"},
      [](const Run& run) { return absl::StrFormat("%.0f", run.cpu_ms_per_step()); });
  add({"final\nloss"}, [](const Run& run) { return absl::StrFormat("%.4f", run.final_loss()); });
  add({"params\nsha256", Align::kLeft},
      [](const Run& run) { return run.params_sha256().substr(0, kShortHash); });
  const int rounds = MostRounds(records);
  return absl::StrCat(
      FormatTable(columns, rows),
      rounds > 1 ? absl::StrCat("samples per s: median over rounds, in brackets ",
                                DescribeInterval(rounds), ".\n")
                 : "",
      "step: median over measured steps, each as long as on its slowest worker. exposed: waiting "
      "for communication\nthat nothing hid. efficiency: samples/s over workers times the samples/s "
      "of one worker in the same setup.\nwire: payload that the worker or server that sends most "
      "sends. CPU: of all processes of the job together, in measured steps.\n",
      Notes(records));
}

Verdict JudgeRuns(const proto::RunRecords& records) {
  Verdict verdict;
  verdict.text = "VERDICT\n";
  verdict.decisions = std::max(1, records.runs_size());
  for (const auto& [group, runs] : GroupForSpeed(records)) {
    const proto::Run& first = *runs[0];
    const std::string with = absl::StrCat("with ", Count(first.workers(), "worker"));
    if (first.bandwidth().empty()) {
      JudgeOneHost(runs, with, &verdict);
    } else {
      JudgeNetwork(records, runs, absl::StrCat("at ", first.bandwidth(), " ", with), &verdict);
    }
  }
  for (const auto& [group, runs] : GroupForArrangements(records)) {
    std::string where = absl::StrCat("with ", Count(group.workers, "worker"));
    if (group.hosts > 0) {
      where =
          absl::StrCat("at ", runs[0]->bandwidth(), " ", where, " on ", Count(group.hosts, "host"));
    }
    JudgeArrangements(runs, where, &verdict);
  }
  for (const auto& [group, runs] : GroupForBits(records)) JudgeBits(runs, &verdict);
  if (const int rounds = MostRounds(records); rounds > 1) {
    absl::StrAppendFormat(
        &verdict.text,
        "  Times are means of ratios within a round, in brackets their interval, which is wrong "
        "for "
        "any of these\n  configurations in at most %.0f of 100 such pages. Faster: 1 is outside of "
        "it. Equal within %.0f %%: two one-sided\n  tests. Not decided: neither, and with fewer "
        "rounds more than said this spread cannot be decided.\n",
        100 * kErrorRate, 100 * kEqualMargin);
  }
  if (std::any_of(records.runs().begin(), records.runs().end(), [](const proto::Run& run) {
        return run.servers() > 0 && run.bandwidth().empty();
      })) {
    absl::StrAppend(
        &verdict.text,
        "  On one machine without an emulated network the servers use the workers' cores "
        "(see the CPU column), and\n  no network is the bottleneck: on a cluster the "
        "order may be another.\n");
  }
  return verdict;
}

}  // namespace gradsync
