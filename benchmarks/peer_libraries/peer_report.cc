#include "benchmarks/peer_libraries/peer_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/table.h"
#include "plan/cost_model.h"

namespace gradsync {
namespace {

constexpr char kBestPeer[] = "best peer";

std::vector<double> BestPeerTimes(absl::Span<const ContestantResult> results) {
  std::vector<std::vector<double>> libraries;
  for (const ContestantResult& result : results) {
    if (result.contestant.role == PeerRole::kLibrary && result.failure.empty()) {
      libraries.push_back(result.times);
    }
  }
  return FastestByRound(libraries);
}

void SetTimes(const ContestantResult& result, proto::Run* run) {
  run->set_time_us_p10(Percentile(result.times, 0.1));
  run->set_time_us_p50(Percentile(result.times, 0.5));
  run->set_time_us_p90(Percentile(result.times, 0.9));
  run->set_algbw_gb_per_s(run->bytes() / run->time_us_p50() * 1e-3);
  // Bytes that nobody adds up, and those of servers, have no such factor.
  if (run->servers() == 0 && result.contestant.role != PeerRole::kCeiling) {
    run->mutable_busbw_gb_per_s()->set_number_value(run->algbw_gb_per_s() *
                                                    AllReduceBusFactor(run->workers()));
  } else {
    run->mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  }
  for (const double time : result.times) run->add_round_us(time);
}

void AddRatio(absl::string_view peer, const std::vector<double>& ours,
              const std::vector<double>& theirs, proto::Run* run) {
  if (theirs.empty()) return;
  const MedianSpread spread = SpreadOfMedian(RatiosByRound(ours, theirs));
  proto::PeerRatio& ratio = *run->add_peer_ratios();
  ratio.set_peer(std::string(peer));
  ratio.set_p50(spread.p50);
  ratio.set_low(spread.low);
  ratio.set_high(spread.high);
  if (peer == kBestPeer) run->set_peer_ratio(spread.p50);
}

proto::Run Record(const ContestantResult& result, absl::Span<const ContestantResult> all,
                  const std::vector<double>& best_peer) {
  proto::Run run = result.run;
  run.set_library(result.contestant.library);
  // Ours say themselves what they are.
  if (result.contestant.role != PeerRole::kOurs || !result.failure.empty()) {
    run.set_topology(result.contestant.topology);
    run.set_link(result.contestant.link);
  }
  run.set_failure(result.failure);
  if (!result.failure.empty()) return run;
  run.set_wrong(result.wrong);
  SetTimes(result, &run);
  if (result.contestant.role != PeerRole::kOurs) return run;
  for (const ContestantResult& other : all) {
    if (other.contestant.role == PeerRole::kOurs || !other.failure.empty()) continue;
    AddRatio(other.contestant.name, result.times, other.times, &run);
  }
  AddRatio(kBestPeer, result.times, best_peer, &run);
  return run;
}

std::string Milliseconds(double us) {
  return absl::StrFormat(us < 1e4 ? "%.3f" : "%.2f", us * 1e-3);
}

// The cells of `peer` beside each of ours.
std::vector<std::string> RatioCells(absl::string_view peer, absl::Span<const proto::Run> ours) {
  std::vector<std::string> cells;
  for (const proto::Run& run : ours) {
    std::string cell;
    for (const proto::PeerRatio& ratio : run.peer_ratios()) {
      if (ratio.peer() == peer) {
        cell = absl::StrFormat("%.2f (%.2f-%.2f)", ratio.p50(), ratio.low(), ratio.high());
      }
    }
    cells.push_back(cell);
  }
  return cells;
}

std::vector<std::string> Row(const ContestantResult& result, const proto::Run& run) {
  if (!result.failure.empty()) return {result.contestant.name, "-"};
  const bool has_busbw = run.busbw_gb_per_s().kind_case() == google::protobuf::Value::kNumberValue;
  // Nobody looks at what the bare streams carry.
  const bool verified = result.contestant.launch != PeerLaunch::kGrpcStream;
  return {result.contestant.name,
          Milliseconds(run.time_us_p50()),
          Milliseconds(run.time_us_p10()),
          Milliseconds(run.time_us_p90()),
          absl::StrFormat("%.2f", run.algbw_gb_per_s()),
          has_busbw ? absl::StrFormat("%.2f", run.busbw_gb_per_s().number_value()) : "-",
          verified ? absl::StrFormat("%.0f", run.wrong()) : "-"};
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
  std::vector<proto::Run> ours;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].contestant.role != PeerRole::kOurs || !results[i].failure.empty()) continue;
    ours.push_back(records[i]);
    columns.push_back({absl::StrCat("time over\n", results[i].contestant.name)});
  }
  std::vector<std::vector<std::string>> rows;
  std::string notes;
  for (size_t i = 0; i < results.size(); ++i) {
    rows.push_back(Row(results[i], records[i]));
    const std::string& name = results[i].contestant.name;
    if (!results[i].failure.empty()) {
      absl::StrAppend(&notes, name, ": ", results[i].failure, "\n");
      continue;
    }
    if (!records[i].settings().empty()) {
      absl::StrAppend(&notes, name, ": best settings ", records[i].settings(), "\n");
    }
    if (results[i].contestant.role == PeerRole::kOurs) continue;
    for (std::string& cell : RatioCells(name, ours)) rows.back().push_back(std::move(cell));
  }
  if (!BestPeerTimes(results).empty()) {
    rows.push_back({kBestPeer, "", "", "", "", "", ""});
    for (std::string& cell : RatioCells(kBestPeer, ours)) rows.back().push_back(std::move(cell));
  }
  return absl::StrCat(FormatTable(columns, rows), notes);
}

}  // namespace gradsync
