#include "benchmarks/replay/replay_cases.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/rank_spec.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr int kMostProcesses = 256;

absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view flag,
                                                const std::vector<std::string>& texts) {
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) {
    GS_ASSIGN_OR_RETURN(sizes.emplace_back(), ParseSize(flag, text));
  }
  if (sizes.empty()) return FlagError(flag, "sizes, such as 25MiB", "");
  return sizes;
}

constexpr char kExpectedScales[] = "numbers from 0 to 1000, such as 0.5,1";

absl::StatusOr<std::vector<double>> ParseScales(const std::vector<std::string>& texts) {
  std::vector<double> scales;
  for (const std::string& text : texts) {
    GS_ASSIGN_OR_RETURN(scales.emplace_back(), ParseComputeScale(text));
  }
  if (scales.empty()) return FlagError("compute_scale", kExpectedScales, "");
  return scales;
}

absl::Status CheckNumbers(const ReplaySweepOptions& options) {
  if (options.warmup_steps < 1) {
    return FlagError("warmup_steps", "at least 1 (the first step is verified, not timed)",
                     absl::StrCat(options.warmup_steps));
  }
  if (options.steps <= options.warmup_steps) {
    return FlagError("steps", absl::StrCat("more than --warmup_steps=", options.warmup_steps),
                     absl::StrCat(options.steps));
  }
  GS_RETURN_IF_ERROR(CheckConnections(options.connections));
  GS_RETURN_IF_ERROR(CheckTimeout(options.timeout));
  return CheckBandwidths(options.bandwidths);
}

absl::StatusOr<JobSweep> SweepOf(const ReplaySweepOptions& options) {
  SweepRules rules;
  rules.topologies = {Topology::kRing, Topology::kPs, Topology::kLocal};
  rules.on_hosts = !options.bandwidths.empty();
  rules.most_processes = kMostProcesses;
  return ParseJobSweep(options, rules);
}

std::string NameOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash != absl::string_view::npos) path.remove_prefix(slash + 1);
  return std::string(absl::StripSuffix(path, ".json"));
}

// What is the same in all measurements.
absl::StatusOr<ReplayCase> CommonCase(const ReplaySweepOptions& options) {
  ReplayCase common;
  common.job.spec.connections = options.connections;
  common.timeout = options.timeout;
  common.global_batch_size = options.global_batch_size;
  common.spec.set_straggler(options.straggler);
  common.spec.set_steps(options.steps - options.warmup_steps);
  common.spec.set_warmup_steps(options.warmup_steps);
  GS_ASSIGN_OR_RETURN(const int64_t first,
                      ParseSize("first_bucket_bytes", options.first_bucket_bytes));
  common.spec.set_first_bucket_bytes(first);
  GS_ASSIGN_OR_RETURN(const int64_t chunk, ParseChunkBytes(options.chunk_bytes));
  common.spec.set_chunk_bytes(chunk);
  return common;
}

// The jobs with so many workers at one bandwidth: topologies innermost.
std::vector<PlacedJob> ListJobsByTopologyLast(const JobSweep& sweep, int workers,
                                              const std::string& bandwidth) {
  std::vector<PlacedJob> jobs;
  JobSweep part = sweep;
  for (Codec codec : sweep.codecs) {
    part.codecs = {codec};
    for (int zero : sweep.zeros) {
      part.zeros = {zero};
      for (UpdateSite update : UpdatesWith(sweep, zero)) {
        part.updates = {update};
        for (Consistency consistency : sweep.consistencies) {
          part.consistencies = {consistency};
          const std::vector<PlacedJob> some = ListJobs(part, workers, bandwidth);
          jobs.insert(jobs.end(), some.begin(), some.end());
        }
      }
    }
  }
  return jobs;
}

// In the order of their paths.
absl::StatusOr<std::vector<proto::StepProfile>> ReadProfiles(
    const std::vector<std::string>& paths) {
  std::vector<proto::StepProfile> profiles;
  for (const std::string& path : paths) {
    GS_ASSIGN_OR_RETURN(profiles.emplace_back(), ReadStepProfile(path));
    GS_RETURN_IF_ERROR(CheckWhole(profiles.back()));
  }
  if (profiles.empty()) return FlagError("replay", "files of step profiles", "");
  return profiles;
}

double ComputeUs(const proto::StepProfile& profile) {
  return profile.forward_us() + profile.backward_us() + profile.update_us();
}

// What each number of workers replays.
struct ProfilesOfWorkers {
  std::string name;
  std::vector<const proto::StepProfile*> profiles;  // as many as there are numbers of workers
  double one_worker_us = 0;                         // as ReplayCase has it
};

const proto::StepProfile* FindBatch(const std::vector<proto::StepProfile>& profiles,
                                    int64_t batch_size) {
  const auto found = std::find_if(
      profiles.begin(), profiles.end(),
      [batch_size](const proto::StepProfile& p) { return p.batch_size() == batch_size; });
  return found == profiles.end() ? nullptr : &*found;
}

absl::StatusOr<const proto::StepProfile*> PartOf(const std::vector<proto::StepProfile>& profiles,
                                                 int64_t global_batch_size, int workers) {
  GS_ASSIGN_OR_RETURN(const int64_t batch,
                      BatchPerWorker(/*batch_size=*/0, global_batch_size, workers));
  if (const proto::StepProfile* part = FindBatch(profiles, batch)) return part;
  std::vector<int> found;
  for (const proto::StepProfile& profile : profiles) found.push_back(profile.batch_size());
  return FlagError("replay",
                   absl::StrCat("a profile with a batch of ", batch, ", for ", workers,
                                " workers that have ", global_batch_size, " samples together"),
                   absl::StrJoin(found, ", "));
}

absl::StatusOr<ProfilesOfWorkers> StrongScaling(const std::vector<proto::StepProfile>& profiles,
                                                int64_t global_batch_size,
                                                const std::vector<int>& workers) {
  const std::string& model = profiles[0].model();
  for (const proto::StepProfile& profile : profiles) {
    if (profile.model() != model) {
      return FlagError("replay", "profiles of one model with --global_batch_size",
                       absl::StrCat(model, " and ", profile.model()));
    }
  }
  ProfilesOfWorkers found;
  found.name = absl::StrCat(model, ":", global_batch_size);
  for (int n : workers) {
    GS_ASSIGN_OR_RETURN(found.profiles.emplace_back(), PartOf(profiles, global_batch_size, n));
  }
  const proto::StepProfile* whole = FindBatch(profiles, global_batch_size);
  if (whole != nullptr) found.one_worker_us = ComputeUs(*whole);
  return found;
}

// What is replayed, in the order of measuring.
absl::StatusOr<std::vector<ProfilesOfWorkers>> ByWorkers(
    const ReplaySweepOptions& options, const std::vector<proto::StepProfile>& profiles,
    const std::vector<int>& workers) {
  GS_RETURN_IF_ERROR(CheckAtLeast("global_batch_size", 0, options.global_batch_size));
  std::vector<ProfilesOfWorkers> all;
  if (options.global_batch_size > 0) {
    GS_ASSIGN_OR_RETURN(all.emplace_back(),
                        StrongScaling(profiles, options.global_batch_size, workers));
    return all;
  }
  for (size_t p = 0; p < profiles.size(); ++p) {
    all.push_back({NameOf(options.profiles[p]),
                   std::vector<const proto::StepProfile*>(workers.size(), &profiles[p]),
                   ComputeUs(profiles[p])});
  }
  return all;
}

// Adds one measurement of each of `jobs`. Errors: those of ProfilePlan().
absl::Status AddCases(const ReplayCase& common, const std::vector<PlacedJob>& jobs,
                      int64_t bucket_bytes, std::vector<ReplayCase>* cases) {
  for (const PlacedJob& job : jobs) {
    ReplayCase next = common;
    next.job = job;
    next.job.spec.connections = common.job.spec.connections;
    next.spec.set_zero(job.zero);
    next.spec.set_chunk_bytes(ChunkBytesOf(job, common.spec.chunk_bytes()));
    next.spec.set_bucket_bytes(bucket_bytes);
    next.spec.set_first_bucket_bytes(std::min(common.spec.first_bucket_bytes(), bucket_bytes));
    // Options that the plan refuses are found here rather than on every rank.
    GS_RETURN_IF_ERROR(ReplayPlan(next.spec, job.spec, job.workers).status());
    cases->push_back(std::move(next));
  }
  return absl::OkStatus();
}

}  // namespace

std::string DescribeMesh(const proto::RankSpec::Replay& spec) {
  return absl::StrCat(spec.mesh(), ", ", spec.pipeline_schedule(), ", ", spec.micro_batches(),
                      " micro-batches of ", spec.step_samples(), " samples, ",
                      spec.split().empty() ? "not cut" : absl::StrCat("cut before ", spec.split()));
}

std::string Describe(const ReplayCase& replay) {
  std::string text = absl::StrCat(replay.profile_name, ": ", DescribeKind(replay.job.spec),
                                  DescribeServers(replay.job), ", workers ", replay.job.workers);
  if (replay.job.zero > 0) absl::StrAppend(&text, ", zero ", replay.job.zero);
  if (!replay.spec.mesh().empty()) absl::StrAppend(&text, ", ", DescribeMesh(replay.spec));
  if (!replay.job.bandwidth.empty()) absl::StrAppend(&text, ", ", replay.job.bandwidth);
  const proto::RankSpec::Replay& spec = replay.spec;
  absl::StrAppend(&text, ", buckets of ", FormatBytes(spec.bucket_bytes()));
  if (spec.compute_scale() != 1) absl::StrAppend(&text, ", compute times ", spec.compute_scale());
  if (!spec.straggler().empty()) absl::StrAppend(&text, ", straggler ", spec.straggler());
  return text;
}

absl::StatusOr<std::vector<ReplayCase>> ListReplayCases(const ReplaySweepOptions& options) {
  GS_ASSIGN_OR_RETURN(const JobSweep sweep, SweepOf(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> buckets,
                      ParseSizes("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(const std::vector<double> scales, ParseScales(options.compute_scales));
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  for (int n : sweep.workers) GS_RETURN_IF_ERROR(straggler.CheckWorkers(n));
  GS_ASSIGN_OR_RETURN(ReplayCase next, CommonCase(options));
  std::vector<PlacedJob> all;
  for (int n : sweep.workers) {
    const std::vector<PlacedJob> jobs = ListJobs(sweep, n, "");
    all.insert(all.end(), jobs.begin(), jobs.end());
  }
  GS_RETURN_IF_ERROR(CheckAllOccur(sweep, all));
  GS_ASSIGN_OR_RETURN(const std::vector<proto::StepProfile> profiles,
                      ReadProfiles(options.profiles));
  GS_ASSIGN_OR_RETURN(const std::vector<ProfilesOfWorkers> by_workers,
                      ByWorkers(options, profiles, sweep.workers));

  std::vector<ReplayCase> cases;
  const std::vector<std::string> here = {""};
  for (const std::string& bandwidth : options.bandwidths.empty() ? here : options.bandwidths) {
    for (const ProfilesOfWorkers& replayed : by_workers) {
      next.profile_name = replayed.name;
      next.one_worker_us = replayed.one_worker_us;
      for (double scale : scales) {
        next.spec.set_compute_scale(scale);
        for (size_t w = 0; w < sweep.workers.size(); ++w) {
          *next.spec.mutable_profile() = *replayed.profiles[w];
          const std::vector<PlacedJob> jobs =
              ListJobsByTopologyLast(sweep, sweep.workers[w], BandwidthName(bandwidth));
          for (int64_t bytes : buckets) {
            GS_RETURN_IF_ERROR(AddCases(next, jobs, bytes, &cases));
          }
        }
      }
    }
  }
  return cases;
}

absl::StatusOr<ReplayCase> CommonReplayCase(const ReplaySweepOptions& options) {
  GS_RETURN_IF_ERROR(ParseSizes("bucket_bytes", options.bucket_bytes).status());
  GS_RETURN_IF_ERROR(ParseScales(options.compute_scales).status());
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  GS_RETURN_IF_ERROR(Straggler::Parse(options.straggler).status());
  GS_RETURN_IF_ERROR(CheckAtLeast("global_batch_size", 0, options.global_batch_size));
  return CommonCase(options);
}

absl::StatusOr<double> ParseComputeScale(const std::string& text) {
  double scale = 0;
  if (absl::SimpleAtod(text, &scale) && scale >= 0 && scale <= 1000) return scale;
  return FlagError("compute_scale", kExpectedScales, text);
}

proto::RankSpec RankSpecOf(const ReplayCase& replay) {
  proto::RankSpec spec;
  SetJob(replay.job.spec, &spec);
  *spec.mutable_replay() = replay.spec;
  return spec;
}

absl::StatusOr<Plan> ReplayPlan(const proto::RankSpec::Replay& spec, const JobSpec& job,
                                int workers) {
  PlanOptions options;
  options.world_size = job.topology == Topology::kLocal ? 1 : workers;
  options.bucket_bytes = spec.bucket_bytes();
  options.first_bucket_bytes = spec.first_bucket_bytes();
  options.chunk_bytes = spec.chunk_bytes();
  options.codec = job.codec;
  GS_ASSIGN_OR_RETURN(const Plan plan, ProfilePlan(spec.profile(), options));
  return WithZero(plan, spec.profile(), spec.zero());
}

}  // namespace gradsync
