#include "benchmarks/comparison/compare_prediction.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/run_program.h"

namespace gradsync {
namespace {

constexpr int kMostWorkers = 64;
constexpr const char* kBandwidths[] = {"25mbit",  "50mbit",  "100mbit", "200mbit",
                                       "400mbit", "700mbit", "1gbit",   "1.5gbit",
                                       "2.5gbit", "5gbit",   "10gbit",  "25gbit"};
constexpr absl::Duration kRecordingLimit = absl::Minutes(5);

// With `workers` instead of the configuration's. Its batch too, under strong scaling.
Configuration WithWorkers(Configuration configuration, int workers, const CompareOptions& options) {
  configuration.workers = workers;
  if (options.global_batch_size > 0) {
    configuration.batch_size = options.global_batch_size / workers;
  }
  return configuration;
}

bool CanBe(const Configuration& c, const Straggler& straggler) {
  if (c.batch_size < 1 || !straggler.CheckWorkers(c.workers).ok()) return false;
  return c.topology != "ps" || PlacementFits(c.placement, c.workers, c.servers);
}

double RateFactor(const EmulatedHosts& hosts, const std::string& bandwidth) {
  if (hosts.rate_factors.empty()) return LinkConstants().rate_factor;
  const auto found = hosts.rate_factors.find(bandwidth);
  if (found != hosts.rate_factors.end()) return found->second;
  double sum = 0;
  for (const auto& [measured, factor] : hosts.rate_factors) sum += factor;
  return sum / static_cast<double>(hosts.rate_factors.size());
}

// How many times as long workers compute that take turns on the cores.
double Turns(int workers, const CompareOptions& options, const EmulatedHosts& hosts) {
  if (hosts.cores == 0) return 1;
  return std::max(1.0, static_cast<double>(workers) * options.threads / hosts.cores);
}

PredictedJob JobOf(const Configuration& c, const Straggler& straggler, const EmulatedHosts& hosts) {
  PredictedJob job;
  job.topology = c.topology;
  if (!c.placement.empty()) job.placement = c.placement;
  job.workers = c.workers;
  job.servers = c.servers;
  job.update = c.update;
  job.compression = c.compression;
  job.consistency = c.consistency;
  job.bandwidth = c.bandwidth;
  job.batch_size = c.batch_size;
  job.constants.rate_factor = RateFactor(hosts, c.bandwidth);
  for (int rank = 0; !straggler.nobody() && rank < c.workers; ++rank) {
    job.slowness.push_back(straggler.Factor(rank, /*step=*/1));
  }
  return job;
}

absl::StatusOr<proto::Run> Predict(const proto::StepProfile& profile, const PredictedJob& job,
                                   const CompareOptions& options) {
  GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(profile, job));
  run.set_global_batch_size(static_cast<double>(options.global_batch_size));
  run.set_straggler(options.straggler);
  return run;
}

// What tells predictions apart.
using Key = std::tuple<std::string, std::string, std::string, int, int, std::string, std::string,
                       std::string>;

Key KeyOf(const Configuration& c) {
  return {c.bandwidth, c.topology, c.placement,   c.workers,
          c.servers,   c.update,   c.compression, c.consistency};
}

}  // namespace

absl::StatusOr<proto::StepProfile> RecordComparedStep(
    const std::string& train_bench, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const std::string& path) {
  GS_RETURN_IF_ERROR(RunProgram(
      {train_bench, "--record=" + path, "--model=" + options.model, "--stem=" + options.stem,
       "--data=" + options.data, absl::StrCat("--batch_size=", configurations[0].batch_size),
       absl::StrCat("--threads=", options.threads), "--steps=13", "--warmup_steps=3"},
      kRecordingLimit));
  return ReadStepProfile(path);
}

absl::StatusOr<std::vector<proto::Run>> PredictCompared(
    const proto::StepProfile& profile, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const EmulatedHosts& hosts) {
  std::vector<proto::Run> predictions;
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  if (straggler.random()) return predictions;
  std::set<Key> done;
  std::set<int> measured_workers;
  for (const Configuration& c : configurations) measured_workers.insert(c.workers);
  for (const Configuration& measured : configurations) {
    if (measured.link == "gloo") continue;
    std::set<int> counts = {measured.workers};
    for (int workers = 1; workers <= kMostWorkers; workers *= 2) counts.insert(workers);
    for (int workers : counts) {
      const Configuration c = WithWorkers(measured, workers, options);
      if (!CanBe(c, straggler) || !done.insert(KeyOf(c)).second) continue;
      PredictedJob job = JobOf(c, straggler, hosts);
      if (measured_workers.count(workers) > 0) job.compute_scale = Turns(workers, options, hosts);
      GS_ASSIGN_OR_RETURN(proto::Run run, Predict(profile, job, options));
      predictions.push_back(std::move(run));
    }
  }
  return predictions;
}

absl::StatusOr<std::vector<proto::Run>> PredictBandwidths(
    const proto::StepProfile& profile, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const EmulatedHosts& hosts) {
  std::vector<proto::Run> predictions;
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  if (straggler.random()) return predictions;
  int most = 0;
  std::set<Key> done;
  std::set<std::string> bandwidths(std::begin(kBandwidths), std::end(kBandwidths));
  for (const Configuration& c : configurations) {
    most = std::max(most, c.workers);
    done.insert(KeyOf(c));
    bandwidths.insert(c.bandwidth);
  }
  std::vector<Configuration> wanted;
  for (const Configuration& c : configurations) {
    if (c.workers != most || c.link == "gloo" || c.topology == "local") continue;
    wanted.push_back(c);
    if (c.topology != "ps") continue;
    wanted.push_back(c);
    wanted.back().placement = "dedicated";
    wanted.back().servers = 1;
  }
  for (const std::string& bandwidth : bandwidths) {
    for (Configuration c : wanted) {
      c.bandwidth = bandwidth;
      if (!done.insert(KeyOf(c)).second) continue;
      PredictedJob job = JobOf(c, straggler, hosts);
      job.compute_scale = Turns(c.workers, options, hosts);
      GS_ASSIGN_OR_RETURN(proto::Run run, Predict(profile, job, options));
      predictions.push_back(std::move(run));
    }
  }
  return predictions;
}

}  // namespace gradsync
