#include "benchmarks/records/curve_report.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "benchmarks/records/curve.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/table.h"

namespace gradsync {
namespace {

struct Target {
  double loss = 0;
  double accuracy = 1;  // 1: not known
};

double BestAccuracy(const proto::Run& run) {
  double best = 0;
  for (const proto::CurvePoint& point : run.curve()) best = std::max(best, point.accuracy());
  return best;
}

std::map<int, Target> Targets(const proto::RunRecords& records) {
  std::map<int, Target> targets;
  for (const proto::Run& run : records.runs()) {
    if (run.curve().empty()) continue;
    const std::vector<double> losses = SmoothedLoss(run);
    Target& target = targets[run.workers()];
    target.loss = std::max(target.loss, *std::min_element(losses.begin(), losses.end()));
    if (BestAccuracy(run) > 0) target.accuracy = std::min(target.accuracy, BestAccuracy(run));
  }
  return targets;
}

std::string Seconds(const absl::optional<double>& seconds) {
  return seconds.has_value() ? absl::StrFormat("%.1f", *seconds) : "-";
}

}  // namespace

std::string FormatStaleness(const proto::Run& run) {
  constexpr int kShown = 10;
  double all = 0;
  for (double steps : run.staleness_histogram()) all += steps;
  if (all == 0) return "-";
  std::vector<std::string> shares;
  double rest = all;
  for (int s = 0; s < std::min(kShown, run.staleness_histogram_size()); ++s) {
    rest -= run.staleness_histogram(s);
    shares.push_back(absl::StrFormat("%.0f", 100 * run.staleness_histogram(s) / all));
  }
  if (rest > 0) shares.push_back(absl::StrFormat("(%.0f)", 100 * rest / all));
  return absl::StrJoin(shares, " ");
}

std::string FormatCurves(const proto::RunRecords& records) {
  bool wanted = false;
  for (const proto::Run& run : records.runs()) {
    wanted = wanted || run.max_staleness() > 0 || !run.straggler().empty() ||
             !SpecOf(run).consistency.bulk();
  }
  if (!wanted) return "";
  std::map<int, Target> targets = Targets(records);
  std::vector<std::vector<std::string>> rows;
  for (const proto::Run& run : records.runs()) {
    const Target& target = targets[run.workers()];
    rows.push_back({run.topology(), run.link().empty() ? "-" : run.link(), run.update(),
                    ConsistencyName(SpecOf(run).consistency), absl::StrCat(run.workers()),
                    run.straggler().empty() ? "-" : run.straggler(),
                    absl::StrFormat("%.2f", run.steps_per_s()),
                    absl::StrCat(Seconds(SecondsToLoss(run, target.loss)),
                                 absl::StrFormat(" (%.3f)", target.loss)),
                    target.accuracy < 1
                        ? absl::StrCat(Seconds(SecondsToAccuracy(run, target.accuracy)),
                                       absl::StrFormat(" (%.1f %%)", 100 * target.accuracy))
                        : "-",
                    absl::StrCat(run.max_staleness()), FormatStaleness(run)});
  }
  return absl::StrCat(
      FormatTable({{"topology", Align::kLeft},
                   {"link", Align::kLeft},
                   {"update\nat", Align::kLeft},
                   {"consistency", Align::kLeft},
                   {"workers"},
                   {"straggler"},
                   {"steps\nper s", Align::kRight, true},
                   {"s to loss\n(of)"},
                   {"s to accuracy\n(of)"},
                   {"max\nstaleness"},
                   {"% of steps that lack\n0, 1, 2, ... of the slowest", Align::kLeft}},
                  rows),
      "steps per s: of the whole group, n gradients to a step, until the first worker has done all "
      "of its own.\ns to loss: until the mean over a tenth of the steps is at most what every run "
      "with as many workers reaches;\ns to accuracy: likewise, of rank 0's parameters "
      "(-- --evaluate_every=N). docs/consistency.md explains staleness.\n");
}

}  // namespace gradsync
