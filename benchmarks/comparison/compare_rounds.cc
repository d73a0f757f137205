#include "benchmarks/comparison/compare_rounds.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/records/run_job.h"

namespace gradsync {
namespace {

bool Compared(const Configuration& a, const Configuration& b) {
  return a.job.bandwidth == b.job.bandwidth && a.job.workers == b.job.workers;
}

std::vector<double> Rates(const proto::Run& run) {
  return {run.round_samples_per_s().begin(), run.round_samples_per_s().end()};
}

// The index of the round in the middle; of two, the slower one.
size_t MiddleRound(const std::vector<proto::Run>& rounds) {
  std::vector<size_t> order(rounds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&rounds](size_t a, size_t b) {
    return rounds[a].samples_per_s() < rounds[b].samples_per_s();
  });
  return order[(order.size() - 1) / 2];
}

void AddStaleness(const proto::Run& round, proto::Run* merged) {
  merged->set_max_staleness(std::max(merged->max_staleness(), round.max_staleness()));
  for (int s = 0; s < round.staleness_histogram_size(); ++s) {
    if (s == merged->staleness_histogram_size()) merged->add_staleness_histogram(0);
    merged->set_staleness_histogram(s,
                                    merged->staleness_histogram(s) + round.staleness_histogram(s));
  }
}

}  // namespace

std::vector<size_t> OrderOfRound(const std::vector<Configuration>& configurations, int round,
                                 int rounds) {
  std::vector<size_t> order(configurations.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && Compared(configurations[begin], configurations[end])) ++end;
    const size_t size = end - begin;
    const size_t stride = std::max<size_t>(1, size / std::max(1, rounds));
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    const size_t shift = stride * static_cast<size_t>(round) % size;
    std::rotate(first, first + static_cast<std::ptrdiff_t>(shift),
                first + static_cast<std::ptrdiff_t>(size));
    begin = end;
  }
  return order;
}

absl::StatusOr<proto::Run> MergeRounds(const std::vector<proto::Run>& rounds) {
  if (rounds.empty()) return absl::DataLossError("expected at least one round, found none");
  proto::Run merged = rounds[MiddleRound(rounds)];
  merged.clear_staleness_histogram();
  merged.clear_invalid();
  int invalid = 0;
  std::string reason;
  std::vector<double> rates;
  std::vector<double> steps;
  for (const proto::Run& round : rounds) {
    if (!SameJob(JobOf(round), JobOf(merged))) {
      return absl::DataLossError(absl::StrCat("expected rounds of one configuration, found ",
                                              round.topology(), " over ", round.link(), " beside ",
                                              merged.topology(), " over ", merged.link()));
    }
    rates.push_back(round.samples_per_s());
    steps.push_back(round.step_ms_p50());
    merged.add_round_samples_per_s(round.samples_per_s());
    merged.add_round_step_ms_p50(round.step_ms_p50());
    merged.add_round_params_sha256(round.params_sha256());
    AddStaleness(round, &merged);
    if (round.invalid().empty()) continue;
    ++invalid;
    reason = round.invalid();
  }
  if (invalid > 0) {
    merged.set_invalid(rounds.size() == 1 ? reason
                                          : absl::StrCat("in ", invalid, " of ", rounds.size(),
                                                         " rounds, such as: ", reason));
  }
  const MedianSpread rate = SpreadOfMedian(rates);
  merged.set_samples_per_s(rate.p50);
  merged.set_samples_per_s_low(rate.low);
  merged.set_samples_per_s_high(rate.high);
  const MedianSpread step = SpreadOfMedian(steps);
  merged.set_step_ms_p50(step.p50);
  merged.set_step_ms_low(step.low);
  merged.set_step_ms_high(step.high);
  return merged;
}

MedianSpread RatioOverRounds(const proto::Run& run, const proto::Run& other) {
  if (run.round_samples_per_s_size() != other.round_samples_per_s_size()) return {};
  return SpreadOfMedian(RatiosByRound(Rates(other), Rates(run)));
}

bool ShowsDifference(const MedianSpread& ratio, int rounds) {
  return rounds >= 2 && ratio.low > 0 && (ratio.low > 1 || ratio.high < 1);
}

std::string FormatRate(const proto::Run& run) {
  const std::string rate = absl::StrFormat("%.1f", run.samples_per_s());
  if (run.round_samples_per_s_size() < 2) return rate;
  return absl::StrFormat("%s (%.1f-%.1f)", rate, run.samples_per_s_low(), run.samples_per_s_high());
}

}  // namespace gradsync
