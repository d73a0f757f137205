#include "benchmarks/comparison/compare_prediction.h"

#include <set>
#include <tuple>

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

PredictedJob JobOf(const Configuration& c, const Straggler& straggler,
                   const LinkConstants& constants) {
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
  job.constants = constants;
  for (int rank = 0; !straggler.nobody() && rank < c.workers; ++rank) {
    job.slowness.push_back(straggler.Factor(rank, /*step=*/1));
  }
  return job;
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
    const std::vector<Configuration>& configurations, const LinkConstants& constants) {
  std::vector<proto::Run> predictions;
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  if (straggler.random()) return predictions;
  std::set<std::tuple<std::string, std::string, int, int, std::string, std::string, std::string>>
      done;
  for (const Configuration& measured : configurations) {
    if (measured.link == "gloo") continue;
    std::set<int> counts = {measured.workers};
    for (int workers = 1; workers <= kMostWorkers; workers *= 2) counts.insert(workers);
    for (int workers : counts) {
      const Configuration c = WithWorkers(measured, workers, options);
      if (!CanBe(c, straggler) || !done.emplace(c.topology, c.placement, c.workers, c.servers,
                                                c.update, c.compression, c.consistency)
                                       .second) {
        continue;
      }
      GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(profile, JobOf(c, straggler, constants)));
      run.set_global_batch_size(static_cast<double>(options.global_batch_size));
      run.set_straggler(options.straggler);
      predictions.push_back(std::move(run));
    }
  }
  return predictions;
}

}  // namespace gradsync
