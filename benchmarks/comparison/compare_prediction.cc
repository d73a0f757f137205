#include "benchmarks/comparison/compare_prediction.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/prediction/mesh_prediction.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/processes.h"
#include "benchmarks/records/run_job.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "core/plan/kinds.h"
#include "core/plan/pipeline_schedule.h"

namespace gradsync {
namespace {

constexpr char kRecorded[] = "gpt_width gpt_layers gpt_heads gpt_context";

// A step takes as long with them and sends as much, but for a percent.
constexpr char kWithoutEffect[] =
    "momentum nesterov weight_decay no_weight_decay label_smoothing lr_scaling lr_reference_batch "
    "schedule lr_milestones lr_gamma lr_final lr_power lr_warmup lr_warmup_steps lr_warmup_start "
    "allow_nonfinite sampler init_from init_key init_skip checkpoint checkpoint_every "
    "checkpoint_keep checkpoint_best evaluate evaluate_every tensorboard trace trace_steps "
    "trace_bandwidth trace_placement "
    "metrics_port metrics_host metrics_port_file log_format reflection failure_timeout run_id "
    "secret_file insecure";

bool IsOneOf(absl::string_view name, absl::string_view names) {
  const std::vector<std::string> all = absl::StrSplit(names, ' ');
  return Contains(all, name);
}

constexpr int kMostWorkers = 64;
constexpr const char* kBandwidths[] = {"25mbit",  "50mbit",  "100mbit", "200mbit",
                                       "400mbit", "700mbit", "1gbit",   "1.5gbit",
                                       "2.5gbit", "5gbit",   "10gbit",  "25gbit"};
constexpr absl::Duration kRecordingLimit = absl::Minutes(5);

// With `workers` instead of the configuration's. Its batch too, under strong scaling.
Configuration WithWorkers(Configuration configuration, int workers, const CompareOptions& options) {
  configuration.job.workers = workers;
  if (options.global_batch_size > 0) {
    configuration.batch_size = options.global_batch_size / workers;
  }
  return configuration;
}

bool CanBe(Configuration c, const Straggler& straggler) {
  return c.batch_size >= 1 && straggler.CheckWorkers(c.job.workers).ok() && CheckJob(&c.job).ok();
}

// Gloo's rings and NCCL's are not what is predicted.
bool IsPredicted(const JobSpec& spec) { return TraitOf(BackendOf(spec)).plan_order; }

// Whether every rank has the whole model, once.
bool IsPlain(const PlacedJob& job) { return job.arrangement == Arrangement(); }

// What is predicted, each once: first with numbers of workers beside the measured one, then at
// bandwidths beside the measured ones. `measured` has the numbers of workers that are measured.
std::vector<Configuration> ListPredicted(const CompareOptions& options,
                                         const std::vector<Configuration>& configurations,
                                         const std::set<int>& measured,
                                         const Straggler& straggler) {
  std::vector<Configuration> all;
  const auto add = [&all, &straggler](Configuration c) {
    if (!CanBe(c, straggler)) return;
    c.job.spec.link = Link::kGrpc;  // predictions are over gRPC, whatever the link
    const auto same = [&c](const Configuration& other) { return SameJob(c.job, other.job); };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(c);
  };
  std::set<std::string> bandwidths(std::begin(kBandwidths), std::end(kBandwidths));
  for (const Configuration& c : configurations) {
    bandwidths.insert(c.job.bandwidth);
    if (!IsPredicted(c.job.spec) || !IsPlain(c.job)) continue;
    std::set<int> counts = {c.job.workers};
    for (int workers = 1; workers <= kMostWorkers; workers *= 2) counts.insert(workers);
    for (int workers : counts) add(WithWorkers(c, workers, options));
  }
  for (const std::string& bandwidth : bandwidths) {
    for (Configuration c : configurations) {
      const Topology topology = c.job.spec.topology;
      const bool most = c.job.workers == *measured.rbegin();
      if (!most || !IsPredicted(c.job.spec) || !IsPlain(c.job)) continue;
      if (topology == Topology::kLocal) continue;
      c.job.bandwidth = bandwidth;
      add(c);
      if (topology != Topology::kPs) continue;
      c.job.placement = Placement::kDedicated;
      c.job.servers = 1;
      add(c);
    }
  }
  return all;
}

double RateFactor(const EmulatedHosts& hosts, const std::string& bandwidth) {
  if (hosts.rate_factors.empty()) return LinkConstants().rate_factor;
  const auto found = hosts.rate_factors.find(bandwidth);
  if (found != hosts.rate_factors.end()) return found->second;
  double sum = 0;
  for (const auto& [measured, factor] : hosts.rate_factors) sum += factor;
  return sum / static_cast<double>(hosts.rate_factors.size());
}

// A measured job on a mesh; nothing for slices, of which there is no profile.
absl::StatusOr<absl::optional<proto::Run>> PredictOnMesh(const proto::StepProfile& profile,
                                                         const Configuration& c,
                                                         const EmulatedHosts& hosts,
                                                         const FollowedFlags& flags, int threads) {
  const Arrangement& how = c.job.arrangement;
  PredictedMesh predicted;
  GS_ASSIGN_OR_RETURN(predicted.mesh, ParseMesh(how.mesh));
  if (predicted.mesh.has_slices()) return absl::optional<proto::Run>();
  if (!how.schedule.empty()) {
    GS_ASSIGN_OR_RETURN(predicted.schedule, ParsePipelineSchedule(how.schedule));
    predicted.split = c.split;
  }
  predicted.micro_batches = how.micro_batches;
  predicted.job.placed = c.job;
  predicted.job.placed.spec.link = Link::kGrpc;
  flags.ApplyTo(&predicted.job);
  predicted.job.batch_size = c.batch_size;
  predicted.job.constants.rate_factor = RateFactor(hosts, c.job.bandwidth);
  predicted.job.compute_scale = TurnsOnCores(c.job.workers, threads, hosts.cores);
  GS_ASSIGN_OR_RETURN(proto::Run run, PredictMesh({profile}, predicted));
  SetArrangement(how, &run);
  return absl::optional<proto::Run>(std::move(run));
}

}  // namespace

void FollowedFlags::ApplyTo(PredictedJob* job) const {
  job->bucket_bytes = bucket_bytes;
  job->first_bucket_bytes = first_bucket_bytes;
  job->chunk_bytes = ChunkBytesOf(job->placed, chunk_bytes);
  job->placed.spec.connections = connections;
}

absl::StatusOr<FollowedFlags> FollowFlags(const CompareOptions& options) {
  FollowedFlags followed;
  if (options.compute.precision != Precision::kFp32) {
    followed.recorded.push_back(
        absl::StrCat("--precision=", PrecisionName(options.compute.precision)));
  }
  if (options.compute.channels_last) followed.recorded.push_back("--channels_last");
  for (const std::string& flag : options.worker_flags) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(
        absl::StripPrefix(absl::StripPrefix(flag, "-"), "-"), absl::MaxSplits('=', 1));
    const auto [name, value] = parts;
    if (name == "bucket_bytes") {
      GS_ASSIGN_OR_RETURN(followed.bucket_bytes, ParseSize(name, value));
    } else if (name == "first_bucket_bytes") {
      GS_ASSIGN_OR_RETURN(followed.first_bucket_bytes, ParseSize(name, value));
    } else if (name == "chunk_bytes") {
      GS_ASSIGN_OR_RETURN(followed.chunk_bytes, ParseChunkBytes(value));
    } else if (name == "connections") {
      if (!absl::SimpleAtoi(value, &followed.connections)) {
        return FlagError(name, "a number", value);
      }
    } else if (IsOneOf(name, kRecorded)) {
      followed.recorded.push_back(flag);
    } else if (!IsOneOf(name, kWithoutEffect)) {
      return absl::FailedPreconditionError(
          absl::StrCat("of steps of workers with ", flag, " nothing is known"));
    }
  }
  return followed;
}

absl::StatusOr<proto::StepProfile> RecordComparedStep(
    const std::string& train_bench, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const std::string& path) {
  GS_ASSIGN_OR_RETURN(const FollowedFlags flags, FollowFlags(options));
  std::vector<std::string> command = {train_bench,
                                      "--record=" + path,
                                      "--model=" + options.model,
                                      "--stem=" + options.stem,
                                      "--data=" + options.data,
                                      absl::StrCat("--batch_size=", configurations[0].batch_size),
                                      absl::StrCat("--threads=", options.threads),
                                      "--steps=13",
                                      "--warmup_steps=3"};
  command.insert(command.end(), flags.recorded.begin(), flags.recorded.end());
  GS_RETURN_IF_ERROR(RunProgram(command, kRecordingLimit));
  return ReadStepProfile(path);
}

absl::StatusOr<std::vector<proto::Run>> PredictCompared(
    const proto::StepProfile& profile, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const EmulatedHosts& hosts) {
  std::vector<proto::Run> predictions;
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  if (straggler.random()) return predictions;
  GS_ASSIGN_OR_RETURN(const FollowedFlags flags, FollowFlags(options));
  std::set<int> measured;
  for (const Configuration& c : configurations) measured.insert(c.job.workers);
  for (const Configuration& c : ListPredicted(options, configurations, measured, straggler)) {
    PredictedJob job;
    job.placed = c.job;
    flags.ApplyTo(&job);
    job.batch_size = c.batch_size;
    job.constants.rate_factor = RateFactor(hosts, c.job.bandwidth);
    if (measured.count(c.job.workers) > 0) {
      job.compute_scale = TurnsOnCores(c.job.workers, options.threads, hosts.cores);
    }
    for (int rank = 0; !straggler.nobody() && rank < c.job.workers; ++rank) {
      job.slowness.push_back(straggler.Factor(rank, /*step=*/1));
    }
    GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(profile, job));
    run.set_global_batch_size(static_cast<double>(options.global_batch_size));
    run.set_straggler(options.straggler);
    predictions.push_back(std::move(run));
  }
  for (const Configuration& c : configurations) {
    if (c.job.arrangement.mesh.empty() || !IsPredicted(c.job.spec)) continue;
    GS_ASSIGN_OR_RETURN(absl::optional<proto::Run> run,
                        PredictOnMesh(profile, c, hosts, flags, options.threads));
    if (!run.has_value()) continue;
    run->set_global_batch_size(static_cast<double>(options.global_batch_size));
    predictions.push_back(*std::move(run));
  }
  return predictions;
}

}  // namespace gradsync
