#include "benchmarks/comparison/compare_rounds.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/comparison/training_job.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
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

constexpr int kBadInput = 2;

// The records of one configuration, a round after the other.
struct Measured {
  std::vector<proto::Run> rounds;
  bool failed = false;
};

class PartRunner {
 public:
  PartRunner(const JobPrograms& programs, const Networks& networks, ProgressOptions progress,
             const std::function<void(absl::string_view)>& on_error)
      : programs_(programs),
        networks_(networks),
        progress_(std::move(progress)),
        on_error_(on_error) {}

  // Adds what succeeds to `records`; returns the exit code.
  int Run(const ComparisonPart& part, proto::RunRecords* records) {
    const int rounds = part.options.rounds;
    std::vector<Measured> measured(part.configurations.size());
    int exit_code = 0;
    for (int round = 0; round < rounds && exit_code < kBadInput; ++round) {
      for (size_t i : OrderOfRound(part.configurations, round, rounds)) {
        const std::string label =
            absl::StrCat(Describe(part.configurations[i]),
                         rounds == 1 ? "" : absl::StrFormat(", round %d of %d", round + 1, rounds));
        exit_code = std::max(exit_code, RunOne(part, part.configurations[i], label, &measured[i]));
        if (exit_code >= kBadInput) break;
      }
    }
    AddMeasured(measured, rounds, records);
    return exit_code;
  }

 private:
  // One job; returns the exit code that it asks for.
  int RunOne(const ComparisonPart& part, const Configuration& configuration,
             const std::string& label, Measured* measured) {
    progress_.Start(label);
    if (measured->failed) {
      progress_.Finish("left out, since it failed");
      return 0;
    }
    JobPrograms programs = programs_;
    const auto network = networks_.find(configuration.job.bandwidth);
    if (network != networks_.end()) programs.network = network->second.get();
    absl::StatusOr<proto::Run> run =
        RunTrainingJob(programs, part.options, configuration,
                       [this](int64_t step, int64_t steps) { progress_.Step(step, steps); });
    if (run.ok()) {
      progress_.Finish(absl::StrFormat("%.1f samples/s, %.1f ms per step, loss %.4f",
                                       run->samples_per_s(), run->step_ms_p50(),
                                       run->final_loss()));
      measured->rounds.push_back(*std::move(run));
      return 0;
    }
    progress_.Finish("failed");
    on_error_(absl::StrCat(Describe(configuration), ": ", run.status().message()));
    measured->failed = true;
    if (absl::IsCancelled(run.status())) return 128 + *programs_.interrupt;
    return absl::IsInvalidArgument(run.status()) ? kBadInput : 1;
  }

  // Merges the rounds that all have, but one at least, into `records`.
  void AddMeasured(const std::vector<Measured>& measured, int rounds, proto::RunRecords* records) {
    size_t complete = static_cast<size_t>(rounds);
    for (const Measured& m : measured) {
      if (!m.failed) complete = std::min(complete, m.rounds.size());
    }
    complete = std::max<size_t>(1, complete);
    for (const Measured& m : measured) {
      if (m.rounds.size() < complete) continue;
      const absl::StatusOr<proto::Run> run =
          MergeRounds({m.rounds.begin(), m.rounds.begin() + static_cast<std::ptrdiff_t>(complete)});
      if (run.ok()) *records->add_runs() = *run;
      if (!run.ok()) on_error_(run.status().message());
    }
  }

  const JobPrograms& programs_;
  const Networks& networks_;
  Progress progress_;
  const std::function<void(absl::string_view)>& on_error_;
};

double ExpectedSecondsOf(const Configuration& c, const CompareOptions& options,
                         const google::protobuf::RepeatedPtrField<proto::Run>& predictions,
                         int cores) {
  constexpr double kStart = 1.5;
  constexpr double kPerSample = 0.0025;
  const double turns = TurnsOnCores(c.job.workers, options.threads, cores);
  double step = kPerSample * turns * static_cast<double>(c.batch_size);
  for (const proto::Run& prediction : predictions) {
    const PlacedJob predicted = JobOf(prediction);
    if (predicted.spec.topology == c.job.spec.topology && predicted.workers == c.job.workers &&
        predicted.servers == c.job.servers && predicted.bandwidth == c.job.bandwidth &&
        predicted.placement == c.job.placement) {
      step = 1e-3 * prediction.step_ms_p50();
    }
  }
  // One step more, for the parameters that are sent before the first.
  return kStart + step * static_cast<double>(options.steps + 1);
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

std::vector<double> RatiosOverRounds(const proto::Run& run, const proto::Run& other) {
  if (run.round_samples_per_s_size() != other.round_samples_per_s_size()) return {};
  return RatiosByRound(Rates(other), Rates(run));
}

std::string FormatRate(const proto::Run& run) {
  const std::string rate = absl::StrFormat("%.1f", run.samples_per_s());
  if (run.round_samples_per_s_size() < 2) return rate;
  return absl::StrFormat("%s (%.1f-%.1f)", rate, run.samples_per_s_low(), run.samples_per_s_high());
}

std::vector<double> ExpectedSeconds(
    const std::vector<ComparisonPart>& parts,
    const google::protobuf::RepeatedPtrField<proto::Run>& predictions, int cores) {
  std::vector<double> seconds;
  for (const ComparisonPart& part : parts) {
    for (int round = 0; round < part.options.rounds; ++round) {
      for (size_t i : OrderOfRound(part.configurations, round, part.options.rounds)) {
        seconds.push_back(
            ExpectedSecondsOf(part.configurations[i], part.options, predictions, cores));
      }
    }
  }
  return seconds;
}

int RunParts(const std::vector<ComparisonPart>& parts, const JobPrograms& programs,
             const Networks& networks, ProgressOptions progress,
             const std::function<void(absl::string_view)>& on_error, proto::RunRecords* records) {
  PartRunner runner(programs, networks, std::move(progress), on_error);
  int exit_code = 0;
  for (const ComparisonPart& part : parts) {
    exit_code = std::max(exit_code, runner.Run(part, records));
    if (exit_code >= kBadInput) break;
  }
  return exit_code;
}

}  // namespace gradsync
