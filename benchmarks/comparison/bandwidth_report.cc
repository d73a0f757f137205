#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "benchmarks/comparison/compare_report.h"
#include "benchmarks/comparison/compare_rounds.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

// Rows of the table that are only predicted.
constexpr const char* kPredictedRows[] = {"50mbit", "1gbit", "10gbit"};
// Predictions closer than this are called equal: the simulator is off by more.
constexpr double kTie = 0.01;

// What one column of the table is about. Ordered as people list them: the ring, servers on the same
// hosts, servers on more.
struct Series {
  int rank = 0;
  int hosts = 0;
  int servers = 0;
  Placement placement = Placement::kNone;  // kNone: the ring

  bool operator<(const Series& other) const {
    return std::tie(rank, hosts, servers, placement) <
           std::tie(other.rank, other.hosts, other.servers, other.placement);
  }
};

Series SeriesOf(const PlacedJob& job) {
  const int hosts = HostCount(job);
  const int rank = job.placement == Placement::kNone ? 0 : hosts == job.workers ? 1 : 2;
  return {rank, hosts, job.servers, job.placement};
}

// Whose measurements the table has: gRPC's, or TCP's where there are none of those.
Link LinkOfTable(const proto::RunRecords& records) {
  Link found = Link::kGrpc;
  for (const proto::Run& run : records.runs()) {
    const Link link = SpecOf(run).link;
    if (!run.bandwidth().empty() && link == Link::kGrpc) return link;
    if (!run.bandwidth().empty() && link == Link::kTcp) found = link;
  }
  return found;
}

bool Plain(const proto::Run& run, Link link) {
  const JobSpec spec = SpecOf(run);
  return !run.bandwidth().empty() && spec.topology != Topology::kLocal &&
         (spec.link == Link::kNone || spec.link == Link::kGrpc || spec.link == link) &&
         spec.update == UpdateSite::kWorker && !spec.codec.compresses() &&
         spec.consistency.bulk() && JobOf(run).arrangement == Arrangement();
}

// The number of workers for which most bandwidths are known, the most of them; 0 for none.
int WorkersOfTable(const proto::RunRecords& records) {
  const Link link = LinkOfTable(records);
  std::map<int, std::set<std::string>> known;
  for (const auto* runs : {&records.runs(), &records.predictions()}) {
    for (const proto::Run& run : *runs) {
      if (Plain(run, link) && run.workers() >= 2) known[run.workers()].insert(run.bandwidth());
    }
  }
  int best = 0;
  for (const auto& [workers, bandwidths] : known) {
    if (best == 0 || bandwidths.size() >= known[best].size()) best = workers;
  }
  return best;
}

using RunsByBandwidth = std::map<std::string, const proto::Run*>;

struct Figures {
  RunsByBandwidth measured;
  RunsByBandwidth predicted;
};

// What the table is made of, for one number of workers.
struct Cells {
  std::map<Series, Figures> by_series;
  std::map<double, std::string> bandwidths;  // of its rows, by rate
};

Cells CellsOf(const proto::RunRecords& records, int workers,
              const std::vector<std::string>& asked_for) {
  Cells cells;
  std::set<std::string> wanted(asked_for.begin(), asked_for.end());
  wanted.insert(std::begin(kPredictedRows), std::end(kPredictedRows));
  const Link link = LinkOfTable(records);
  for (bool measured : {true, false}) {
    for (const proto::Run& run : measured ? records.runs() : records.predictions()) {
      if (!Plain(run, link) || run.workers() != workers) continue;
      Figures& figures = cells.by_series[SeriesOf(JobOf(run))];
      (measured ? figures.measured : figures.predicted)[run.bandwidth()] = &run;
      const absl::StatusOr<double> rate = ParseBandwidth(run.bandwidth());
      const bool row = measured || wanted.count(run.bandwidth()) > 0;
      if (row && rate.ok()) cells.bandwidths.emplace(*rate, run.bandwidth());
    }
  }
  return cells;
}

std::string Words(const Series& series) {
  const std::string count = Count(series.servers, "server");
  switch (series.placement) {
    case Placement::kNone:
      break;
    case Placement::kDedicated:
      return absl::StrCat("ps, ", count, "\non own hosts");
    case Placement::kColocated:
      return absl::StrCat("ps, ", count, "\nbeside workers");
    case Placement::kMixed:
      return absl::StrCat("ps, ", count, " and\none beside each worker");
  }
  return TopologyName(Topology::kRing);
}

std::string Cell(const RunsByBandwidth& runs, const std::string& bandwidth) {
  const auto found = runs.find(bandwidth);
  if (found == runs.end()) return "-";
  const proto::Run& run = *found->second;
  return absl::StrCat(FormatRate(run), run.invalid().empty() ? "" : " INVALID");
}

// The predicted lead of the fastest servers on `more` hosts than workers, or on as many, over the
// ring.
std::string PredictedLead(const Cells& cells, const std::string& bandwidth, bool more) {
  const proto::Run* ring = nullptr;
  const proto::Run* best = nullptr;
  std::string name;
  for (const auto& [series, figures] : cells.by_series) {
    const auto found = figures.predicted.find(bandwidth);
    if (found == figures.predicted.end()) continue;
    const proto::Run* const run = found->second;
    if (series.placement == Placement::kNone) {
      ring = run;
    } else if ((series.rank == 2) == more &&
               (best == nullptr || run->samples_per_s() > best->samples_per_s())) {
      best = run;
      name = absl::StrCat(Count(run->servers(), "server"),
                          more ? " on hosts of their own" : " beside the workers");
    }
  }
  if (ring == nullptr || best == nullptr) return "";
  const double lead = best->samples_per_s() / ring->samples_per_s() - 1;
  if (lead < kTie && lead > -kTie) return absl::StrCat("ps with ", name, " as fast as the ring");
  return absl::StrFormat("ps with %s %.0f %% %s than the ring", name,
                         100 * (lead > 0 ? lead : 1 / (1 + lead) - 1),
                         lead > 0 ? "faster" : "slower");
}

}  // namespace

const proto::Run* PredictionOf(const proto::RunRecords& records, const proto::Run& run) {
  const PlacedJob job = JobOf(run);
  if (job.spec.link != Link::kGrpc && job.spec.link != Link::kTcp) return nullptr;
  for (const proto::Run& prediction : records.predictions()) {
    PlacedJob predicted = JobOf(prediction);
    predicted.spec.link = job.spec.link;
    if (SameJob(predicted, job) && prediction.batch_size() == run.batch_size()) return &prediction;
  }
  return nullptr;
}

std::string FormatBandwidths(const proto::RunRecords& records,
                             const std::vector<std::string>& asked_for) {
  const int workers = WorkersOfTable(records);
  const Cells cells = CellsOf(records, workers, asked_for);
  if (workers == 0 || cells.bandwidths.size() < 2) return "";
  std::vector<Column> columns = {{"bandwidth"}};
  std::vector<std::vector<std::string>> rows;
  for (const auto& [rate, bandwidth] : cells.bandwidths) rows.push_back({bandwidth});
  int rounds = 1;
  for (const auto& [series, figures] : cells.by_series) {
    // Above both columns of a series.
    std::string head = absl::StrCat(Words(series), "\n", series.hosts, " hosts\n");
    for (bool measured : {true, false}) {
      const RunsByBandwidth& runs = measured ? figures.measured : figures.predicted;
      if (runs.empty()) continue;
      const bool first = !head.empty();
      columns.push_back(
          {absl::StrCat(head, measured ? "measured" : "predicted"), Align::kRight, first});
      head.clear();
      for (std::vector<std::string>& row : rows) row.push_back(Cell(runs, row[0]));
      for (const auto& [bandwidth, run] : runs) {
        rounds = std::max(rounds, run->round_samples_per_s_size());
      }
    }
  }
  return absl::StrCat("BANDWIDTH: samples per second of ", workers,
                      " workers, by what each host's link carries each way",
                      rounds > 1 ? "; in brackets " + DescribeInterval(rounds) : "", "\n",
                      FormatTable(columns, rows));
}

std::string JudgePredictions(const proto::RunRecords& records,
                             const std::vector<std::string>& bandwidths) {
  std::set<std::string> measured;
  for (const proto::Run& run : records.runs()) {
    if (run.invalid().empty()) measured.insert(run.bandwidth());
  }
  const int workers = WorkersOfTable(records);
  const Cells cells = CellsOf(records, workers, bandwidths);
  std::string text;
  for (const std::string& bandwidth : bandwidths) {
    if (measured.count(bandwidth) > 0) continue;
    std::vector<std::string> leads;
    for (bool more : {false, true}) {
      const std::string lead = PredictedLead(cells, bandwidth, more);
      if (!lead.empty()) leads.push_back(lead);
    }
    if (leads.empty()) continue;
    absl::StrAppend(&text, "  predicted, not measured: at ", bandwidth, " with ", workers,
                    " workers ", absl::StrJoin(leads, ", "), "\n");
  }
  return text;
}

}  // namespace gradsync
