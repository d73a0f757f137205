#include "benchmarks/records/curve.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"

namespace gradsync {
namespace {

// End and loss of every step of every worker, in the order of ends.
std::vector<std::pair<double, double>> Ends(const std::vector<proto::WorkerMetrics>& workers) {
  std::vector<std::pair<double, double>> ends;
  for (const proto::WorkerMetrics& worker : workers) {
    const int steps = std::min(worker.step_end_seconds_size(), worker.loss_size());
    for (int s = 0; s < steps; ++s) ends.emplace_back(worker.step_end_seconds(s), worker.loss(s));
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

// That each entry stands for.
double StepsOf(const proto::WorkerMetrics& worker) { return std::max(1, worker.step_stride()); }

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

void SetCurve(const std::vector<proto::WorkerMetrics>& workers, proto::Run* run) {
  const std::vector<std::pair<double, double>> ends = Ends(workers);
  const size_t n = workers.size();
  for (size_t end = n; end <= ends.size(); end += n) {
    proto::CurvePoint& point = *run->add_curve();
    point.set_seconds(ends[end - 1].first);
    point.set_step(static_cast<double>(end / n) * StepsOf(workers[0]));
    double loss = 0;
    for (size_t i = end - n; i < end; ++i) loss += ends[i].second / static_cast<double>(n);
    point.set_loss(loss);
  }
  if (run->curve_size() == 0) return;
  for (const proto::CurvePoint& measured : workers[0].accuracy_curve()) {
    auto point = std::find_if(run->mutable_curve()->begin(), run->mutable_curve()->end(),
                              [&](const auto& p) { return p.seconds() >= measured.seconds(); });
    if (point == run->mutable_curve()->end()) --point;
    point->set_accuracy(measured.accuracy());
  }
}

double StepsPerSecond(const std::vector<proto::WorkerMetrics>& workers) {
  double first_end = 0;
  for (const proto::WorkerMetrics& worker : workers) {
    if (worker.step_end_seconds().empty()) return 0;
    const double end = *worker.step_end_seconds().rbegin();
    if (first_end == 0 || end < first_end) first_end = end;
  }
  return first_end > 0 ? StepsBetween(workers, 0, first_end) / first_end : 0;
}

double StepsBetween(const std::vector<proto::WorkerMetrics>& workers, double from, double to) {
  double steps = 0;
  for (const proto::WorkerMetrics& worker : workers) {
    double begin = 0;
    for (double end : worker.step_end_seconds()) {
      if (end > begin) {
        const double within = std::min(end, to) - std::max(begin, from);
        steps += std::max(0.0, within / (end - begin)) * StepsOf(worker);
      }
      begin = end;
    }
  }
  return workers.empty() ? 0 : steps / static_cast<double>(workers.size());
}

std::vector<double> SmoothedLoss(const proto::Run& run) {
  const int points = run.curve_size();
  const int half = points / 20;
  std::vector<double> smoothed;
  for (int i = 0; i < points; ++i) {
    const int begin = std::max(0, i - half);
    const int end = std::min(points, i + half + 1);
    double sum = 0;
    for (int j = begin; j < end; ++j) sum += run.curve(j).loss();
    smoothed.push_back(sum / (end - begin));
  }
  return smoothed;
}

absl::optional<double> SecondsToLoss(const proto::Run& run, double loss) {
  const std::vector<double> smoothed = SmoothedLoss(run);
  for (size_t i = 0; i < smoothed.size(); ++i) {
    if (smoothed[i] <= loss) return run.curve(static_cast<int>(i)).seconds();
  }
  return absl::nullopt;
}

absl::optional<double> SecondsToAccuracy(const proto::Run& run, double accuracy) {
  for (const proto::CurvePoint& point : run.curve()) {
    if (point.accuracy() > 0 && point.accuracy() >= accuracy) return point.seconds();
  }
  return absl::nullopt;
}

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
      "(-- --evaluate_every=N). docs/use/consistency.md explains staleness.\n");
}

}  // namespace gradsync
