#include "benchmarks/replay/replay_cases.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/byte_sizes.h"
#include "base/flag_error.h"
#include "base/rate.h"
#include "base/status_macros.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/profiles/step_profile.h"

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

absl::StatusOr<std::vector<double>> ParseScales(const std::vector<std::string>& texts) {
  constexpr char kExpected[] = "numbers from 0 to 1000, such as 0.5,1";
  std::vector<double> scales;
  for (const std::string& text : texts) {
    double scale = 0;
    if (!absl::SimpleAtod(text, &scale) || !(scale >= 0 && scale <= 1000)) {
      return FlagError("compute_scale", kExpected, text);
    }
    scales.push_back(scale);
  }
  if (scales.empty()) return FlagError("compute_scale", kExpected, "");
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
  GS_ASSIGN_OR_RETURN(common.straggler, Straggler::Parse(options.straggler));
  common.steps = options.steps;
  common.warmup_steps = options.warmup_steps;
  common.job.spec.connections = options.connections;
  common.timeout = options.timeout;
  GS_ASSIGN_OR_RETURN(common.plan.first_bucket_bytes,
                      ParseSize("first_bucket_bytes", options.first_bucket_bytes));
  GS_ASSIGN_OR_RETURN(common.plan.chunk_bytes, ParseChunkBytes(options.chunk_bytes));
  return common;
}

// The jobs with so many workers at one bandwidth: topologies innermost.
std::vector<PlacedJob> ListJobsByTopologyLast(const JobSweep& sweep, int workers,
                                              const std::string& bandwidth) {
  std::vector<PlacedJob> jobs;
  JobSweep part = sweep;
  for (Codec codec : sweep.codecs) {
    part.codecs = {codec};
    for (UpdateSite update : sweep.updates) {
      part.updates = {update};
      for (Consistency consistency : sweep.consistencies) {
        part.consistencies = {consistency};
        const std::vector<PlacedJob> some = ListJobs(part, workers, bandwidth);
        jobs.insert(jobs.end(), some.begin(), some.end());
      }
    }
  }
  return jobs;
}

struct NamedProfile {
  std::string path;
  proto::StepProfile profile;
};

absl::StatusOr<std::vector<NamedProfile>> ReadProfiles(const std::vector<std::string>& paths) {
  std::vector<NamedProfile> profiles;
  for (const std::string& path : paths) {
    NamedProfile& next = profiles.emplace_back();
    next.path = path;
    GS_ASSIGN_OR_RETURN(next.profile, ReadStepProfile(path));
  }
  if (profiles.empty()) return FlagError("replay", "files of step profiles", "");
  return profiles;
}

// Adds one measurement of each of `jobs`. Errors: those of ProfilePlan().
absl::Status AddCases(const ReplayCase& common, const std::vector<PlacedJob>& jobs,
                      int64_t bucket_bytes, std::vector<ReplayCase>* cases) {
  for (const PlacedJob& job : jobs) {
    ReplayCase next = common;
    next.job = job;
    next.job.spec.connections = common.job.spec.connections;
    next.plan.codec = job.spec.codec;
    next.plan.world_size = job.spec.topology == Topology::kLocal ? 1 : job.workers;
    next.plan.bucket_bytes = bucket_bytes;
    next.plan.first_bucket_bytes = std::min(next.plan.first_bucket_bytes, bucket_bytes);
    // Options that the plan refuses are found here rather than on every rank.
    GS_RETURN_IF_ERROR(ProfilePlan(next.profile, next.plan).status());
    cases->push_back(std::move(next));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Describe(const ReplayCase& replay) {
  std::string text = absl::StrCat(replay.profile_name, ": ", DescribeKind(replay.job.spec),
                                  DescribeServers(replay.job), ", workers ", replay.job.workers);
  if (!replay.job.bandwidth.empty()) absl::StrAppend(&text, ", ", replay.job.bandwidth);
  absl::StrAppend(&text, ", buckets of ", FormatBytes(replay.plan.bucket_bytes));
  if (replay.compute_scale != 1) absl::StrAppend(&text, ", compute times ", replay.compute_scale);
  if (!replay.straggler.nobody()) absl::StrAppend(&text, ", straggler ", replay.straggler.text());
  return text;
}

absl::StatusOr<std::vector<ReplayCase>> ListReplayCases(const ReplaySweepOptions& options) {
  GS_ASSIGN_OR_RETURN(const JobSweep sweep, SweepOf(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> buckets,
                      ParseSizes("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(const std::vector<double> scales, ParseScales(options.compute_scales));
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  GS_ASSIGN_OR_RETURN(ReplayCase next, CommonCase(options));
  for (int n : sweep.workers) GS_RETURN_IF_ERROR(next.straggler.CheckWorkers(n));
  std::vector<PlacedJob> all;
  for (int n : sweep.workers) {
    const std::vector<PlacedJob> jobs = ListJobs(sweep, n, "");
    all.insert(all.end(), jobs.begin(), jobs.end());
  }
  GS_RETURN_IF_ERROR(CheckAllOccur(sweep, all));
  GS_ASSIGN_OR_RETURN(const std::vector<NamedProfile> profiles, ReadProfiles(options.profiles));

  std::vector<ReplayCase> cases;
  const std::vector<std::string> here = {""};
  for (const std::string& bandwidth : options.bandwidths.empty() ? here : options.bandwidths) {
    for (const NamedProfile& profile : profiles) {
      next.profile_path = profile.path;
      next.profile_name = NameOf(profile.path);
      next.profile = profile.profile;
      for (double scale : scales) {
        next.compute_scale = scale;
        for (int n : sweep.workers) {
          const std::vector<PlacedJob> jobs =
              ListJobsByTopologyLast(sweep, n, BandwidthName(bandwidth));
          for (int64_t bytes : buckets) {
            GS_RETURN_IF_ERROR(AddCases(next, jobs, bytes, &cases));
          }
        }
      }
    }
  }
  return cases;
}

std::vector<std::string> ReplayRankFlags(const ReplayCase& replay, const std::string& start_line) {
  const JobSpec& spec = replay.job.spec;
  std::vector<std::string> flags = {
      absl::StrCat("--profile=", replay.profile_path),
      absl::StrCat("--topology=", TopologyName(spec.topology)),
      absl::StrCat("--link=", LinkName(spec.link)),
      absl::StrCat("--update=", UpdateSiteName(spec.update)),
      absl::StrCat("--compression=", CodecName(spec.codec)),
      absl::StrCat("--consistency=", ConsistencyName(spec.consistency)),
      absl::StrCat("--connections=", spec.connections),
      absl::StrCat("--bucket_bytes=", replay.plan.bucket_bytes),
      absl::StrCat("--first_bucket_bytes=", replay.plan.first_bucket_bytes),
      absl::StrCat("--chunk_bytes=", replay.plan.chunk_bytes),
      absl::StrCat("--compute_scale=", replay.compute_scale),
      absl::StrCat("--steps=", replay.steps - replay.warmup_steps),
      absl::StrCat("--warmup_steps=", replay.warmup_steps),
      absl::StrCat("--timeout=", absl::FormatDuration(replay.timeout)),
      absl::StrCat("--start_line=", start_line)};
  if (!replay.straggler.nobody()) {
    flags.push_back(absl::StrCat("--straggler=", replay.straggler.text()));
  }
  return flags;
}

}  // namespace gradsync
