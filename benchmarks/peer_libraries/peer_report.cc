#include "benchmarks/peer_libraries/peer_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/terminal.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

bool Ours(const ContestantResult& result) { return result.contestant.role == PeerRole::kOurs; }
bool Ran(const ContestantResult& result) { return result.run.failure().empty(); }

bool IsPeer(const ContestantResult& result) {
  return result.contestant.role == PeerRole::kLibrary && Ran(result);
}

std::vector<double> Times(const proto::Run& run) {
  return {run.round_us().begin(), run.round_us().end()};
}

std::vector<double> BestPeerTimes(absl::Span<const ContestantResult> results) {
  std::vector<std::vector<double>> libraries;
  for (const ContestantResult& result : results) {
    if (IsPeer(result)) libraries.push_back(Times(result.run));
  }
  return FastestByRound(libraries);
}

// "openmpi in 5 rounds, oneccl in 4"
std::string BestPeers(absl::Span<const ContestantResult> results, const std::vector<double>& best) {
  std::vector<std::string> parts;
  for (const ContestantResult& result : results) {
    if (!IsPeer(result)) continue;
    int rounds = 0;
    for (size_t i = 0; i < best.size(); ++i) {
      rounds += result.run.round_us(static_cast<int>(i)) == best[i];
    }
    if (rounds > 0) parts.push_back(absl::StrCat(result.contestant.name, " in ", rounds));
  }
  return absl::StrCat(absl::StrJoin(parts, ", "), " of ", best.size(), " rounds");
}

proto::Run Record(const ContestantResult& result, absl::Span<const ContestantResult> all,
                  const std::vector<double>& best_peer) {
  proto::Run run = result.run;
  run.set_library(result.contestant.library);
  // Ours say themselves what they are.
  if (!Ours(result) || !Ran(result)) {
    const absl::optional<JobSpec>& spec = result.contestant.spec;
    run.set_topology(spec.has_value() ? TopologyName(spec->topology) : "");
    run.set_link(spec.has_value() ? LinkName(spec->link) : "");
  }
  if (!Ran(result)) {
    run.clear_round_us();
    return run;
  }
  const std::vector<double> times = Times(run);
  run.set_time_us_p10(Percentile(times, 0.1));
  run.set_time_us_p50(Percentile(times, 0.5));
  run.set_time_us_p90(Percentile(times, 0.9));
  SetBusBandwidth(&run);
  // Bytes that nobody adds up have no such factor.
  if (result.contestant.role == PeerRole::kCeiling) {
    run.mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  }
  if (!Ours(result)) return run;
  for (const ContestantResult& other : all) {
    if (Ours(other) || !Ran(other)) continue;
    *run.add_peer_ratios() = RatioTo(other.contestant.name, times, Times(other.run));
  }
  if (best_peer.empty()) return run;
  *run.add_peer_ratios() = RatioTo(kBestPeer, times, best_peer);
  run.set_peer_ratio(run.peer_ratios().rbegin()->p50());
  return run;
}

std::string Milliseconds(double us) {
  return absl::StrFormat(us < 1e4 ? "%.3f" : "%.2f", us * 1e-3);
}

std::string RatioCell(const proto::PeerRatio& ratio) {
  // Small sizes over gRPC are hundreds of times as long as in shared memory.
  return ratio.p50() < 0.1
             ? absl::StrFormat("%.4f (%.4f-%.4f)", ratio.p50(), ratio.low(), ratio.high())
             : absl::StrFormat("%.2f (%.2f-%.2f)", ratio.p50(), ratio.low(), ratio.high());
}

// "two clusters, with medians of 25.50 ms (5 rounds) and 87.15 ms (4)"; empty when there are none.
std::string DescribeClusters(const std::vector<double>& times) {
  const std::vector<TimeCluster> clusters = FindTwoClusters(times);
  if (clusters.empty()) return "";
  return absl::StrCat("two clusters, with medians of ", Milliseconds(clusters[0].p50), " ms (",
                      clusters[0].count, " rounds) and ", Milliseconds(clusters[1].p50), " ms (",
                      clusters[1].count, "): p50 and ratios stand for neither");
}

std::string MarkedMilliseconds(const std::vector<double>& times) {
  return absl::StrCat(FindTwoClusters(times).empty() ? "" : "~",
                      Milliseconds(Percentile(times, 0.5)));
}

std::vector<std::string> Row(const ContestantResult& result, const proto::Run& run) {
  if (!Ran(result)) return {result.contestant.name, "-"};
  const bool has_busbw = run.busbw_gb_per_s().kind_case() == google::protobuf::Value::kNumberValue;
  // Nobody looks at what the bare streams carry.
  const bool verified = result.contestant.launch != PeerLaunch::kGrpcStream;
  return {result.contestant.name,
          MarkedMilliseconds(Times(run)),
          Milliseconds(run.time_us_p10()),
          Milliseconds(run.time_us_p90()),
          absl::StrFormat("%.2f", run.algbw_gb_per_s()),
          has_busbw ? absl::StrFormat("%.2f", run.busbw_gb_per_s().number_value()) : "-",
          verified ? absl::StrFormat("%.0f", run.wrong()) : "-"};
}

// What stands below the table about a contestant.
std::string Notes(const ContestantResult& result, const proto::Run& run) {
  if (!Ran(result)) return absl::StrCat(result.contestant.name, ": ", run.failure(), "\n");
  std::vector<std::string> parts;
  if (!run.settings().empty()) parts.push_back(absl::StrCat("best settings ", run.settings()));
  parts.push_back(DescribeClusters(Times(run)));
  parts.push_back(result.contestant.note);
  std::string notes;
  for (const std::string& part : parts) {
    if (!part.empty()) absl::StrAppend(&notes, result.contestant.name, ": ", part, "\n");
  }
  return notes;
}

// In the row of that name, which is added if it is not there.
void SetCell(const std::string& row, size_t columns, const std::string& cell,
             std::vector<std::vector<std::string>>* rows) {
  auto found = std::find_if(rows->begin(), rows->end(),
                            [&row](const std::vector<std::string>& r) { return r[0] == row; });
  if (found == rows->end()) found = rows->insert(found, {row});
  found->resize(columns);
  found->back() = cell;
}

}  // namespace

std::vector<proto::Run> PeerRecords(absl::Span<const ContestantResult> results) {
  const std::vector<double> best_peer = BestPeerTimes(results);
  std::vector<proto::Run> records;
  for (const ContestantResult& result : results) {
    records.push_back(Record(result, results, best_peer));
  }
  return records;
}

std::string PeerTable(absl::Span<const ContestantResult> results,
                      absl::Span<const proto::Run> records) {
  std::vector<Column> columns = {{"", Align::kLeft}, {"time ms\np50"}, {"\np10"}, {"\np90"},
                                 {"algbw\nGB/s"},    {"busbw\nGB/s"},  {"#wrong"}};
  std::vector<std::vector<double>> ours;  // times
  for (const ContestantResult& result : results) {
    if (!Ours(result) || !Ran(result)) continue;
    ours.push_back(Times(result.run));
    columns.push_back({absl::StrCat("time over\n", result.contestant.name)});
  }
  std::vector<std::vector<std::string>> rows;
  const auto add_ratios = [&](const std::vector<double>& theirs) {
    for (const std::vector<double>& mine : ours) {
      rows.back().push_back(RatioCell(RatioTo("", mine, theirs)));
    }
  };
  std::string notes;
  for (size_t i = 0; i < results.size(); ++i) {
    rows.push_back(Row(results[i], records[i]));
    absl::StrAppend(&notes, Notes(results[i], records[i]));
    if (!Ours(results[i]) && Ran(results[i])) add_ratios(Times(results[i].run));
  }
  const std::vector<double> best = BestPeerTimes(results);
  if (!best.empty()) {
    rows.push_back({kBestPeer, MarkedMilliseconds(best), Milliseconds(Percentile(best, 0.1)),
                    Milliseconds(Percentile(best, 0.9)), "", "", ""});
    add_ratios(best);
    absl::StrAppend(&notes, kBestPeer, ": the fastest of each round, ", BestPeers(results, best),
                    "\n");
  }
  return absl::StrCat(FormatTable(columns, rows), notes);
}

std::string PeerSummary(absl::Span<const std::vector<proto::Run>> cases) {
  std::vector<Column> columns = {{"", Align::kLeft}};
  std::vector<std::vector<std::string>> rows = {{""}};
  int rounds = 1;
  for (const std::vector<proto::Run>& runs : cases) {
    const auto ours = std::find_if(runs.begin(), runs.end(), [](const proto::Run& run) {
      return run.library() == "gradsync" && run.failure().empty();
    });
    if (ours == runs.end()) continue;
    rounds = std::max(rounds, ours->round_us_size());
    columns.push_back({absl::StrCat(FormatBytes(static_cast<int64_t>(ours->bytes())), "\n",
                                    ours->workers(), " ranks")});
    const std::string name = absl::StrCat(ours->topology(), "/", ours->link());
    // A case in which another one of ours is the first has a row of its own.
    SetCell(absl::StrCat(name, ", ms"), columns.size(), Milliseconds(ours->time_us_p50()), &rows);
    for (const proto::Run& run : runs) {
      if (run.library() != "gradsync" || &run == &*ours || !run.failure().empty()) continue;
      SetCell(absl::StrCat(run.topology(), "/", run.link()), columns.size(),
              RatioCell(RatioTo("", Times(*ours), Times(run))), &rows);
    }
    for (const proto::PeerRatio& ratio : ours->peer_ratios()) {
      SetCell(ratio.peer(), columns.size(), RatioCell(ratio), &rows);
    }
  }
  rows.erase(rows.begin());
  if (rows.empty()) return "";
  // A library that runs in a later case only must not stand below it.
  std::stable_partition(rows.begin(), rows.end(),
                        [](const std::vector<std::string>& row) { return row[0] != kBestPeer; });
  return absl::StrCat("time over that of the first row, in brackets ", DescribeInterval(rounds),
                      "\n", FormatTable(columns, rows));
}

}  // namespace gradsync
