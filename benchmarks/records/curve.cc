#include "benchmarks/records/curve.h"

#include <algorithm>
#include <utility>

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

}  // namespace gradsync
