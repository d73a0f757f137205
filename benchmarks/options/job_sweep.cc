#include "benchmarks/options/job_sweep.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/sharding.h"

namespace gradsync {
namespace {

template <typename T>
std::vector<std::string> NamesOf(const std::vector<T>& values, std::string (*name)(T)) {
  std::vector<std::string> names;
  for (const T& value : values) names.push_back(name(value));
  return names;
}

// Some of `known`.
template <typename T>
absl::StatusOr<std::vector<T>> ParseEach(absl::string_view flag,
                                         const std::vector<std::string>& texts,
                                         const std::vector<T>& known, std::string (*name)(T)) {
  const std::vector<std::string> names = NamesOf(known, name);
  GS_RETURN_IF_ERROR(CheckNames(flag, texts, names));
  std::vector<T> values;
  for (const std::string& text : texts) {
    values.push_back(known[std::find(names.begin(), names.end(), text) - names.begin()]);
  }
  return values;
}

// GPUs of one host talk past the emulated one, and shared memory is no network.
absl::Status CheckBetweenHosts(const std::vector<Link>& links) {
  const std::pair<Link, absl::string_view> why_not[] = {
      {Link::kNccl, "past which NCCL would go"},
      {Link::kCudaIpc, "whose hosts share no GPU"},
      {Link::kShm, "whose hosts share no memory"}};
  for (const auto& [link, why] : why_not) {
    if (!Contains(links, link)) continue;
    return FlagError("link", absl::StrCat("grpc, tcp, gloo or auto with --bandwidth, ", why),
                     LinkName(link));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Placement>> ParsePlacements(const SweepFlags& flags, bool on_hosts) {
  GS_ASSIGN_OR_RETURN(
      const std::vector<Placement> placements,
      ParseEach<Placement>("placement", flags.placements,
                           {Placement::kDedicated, Placement::kColocated, Placement::kMixed},
                           PlacementName));
  for (Placement placement : placements) {
    if (on_hosts || placement == Placement::kDedicated) continue;
    return FlagError("placement", "dedicated, or --bandwidth, which places servers on hosts",
                     PlacementName(placement));
  }
  return placements;
}

absl::StatusOr<std::vector<Codec>> ParseCodecs(const std::vector<std::string>& texts, bool sparse) {
  const std::string all = absl::StrCat("some of none, fp16, bf16", sparse ? ", topk:R" : "");
  if (texts.empty()) return FlagError("compression", all, "");
  std::vector<Codec> codecs;
  for (const std::string& text : texts) {
    const absl::StatusOr<Codec> codec = ParseCodec(text);
    if (!codec.ok()) return Named("compression", codec.status());
    if (codec->sparse() && !sparse) {
      return FlagError("compression",
                       absl::StrCat(all,
                                    " (compare measures topk, whose results depend on all "
                                    "earlier steps)"),
                       text);
    }
    codecs.push_back(*codec);
  }
  return codecs;
}

absl::StatusOr<std::vector<Consistency>> ParseConsistencies(const std::vector<std::string>& texts) {
  if (texts.empty()) return FlagError("consistency", "some of bsp, ssp:S, asp", "");
  std::vector<Consistency> consistencies;
  for (const std::string& text : texts) {
    const absl::StatusOr<Consistency> consistency = ParseConsistency(text);
    if (!consistency.ok()) return Named("consistency", consistency.status());
    consistencies.push_back(*consistency);
  }
  return consistencies;
}

absl::StatusOr<std::vector<int>> ParseZeros(const std::vector<std::string>& texts) {
  std::vector<int> zeros;
  for (const std::string& text : texts) {
    int& zero = zeros.emplace_back(-1);
    if (absl::SimpleAtoi(text, &zero) && zero >= 0 && zero <= kMostZero) continue;
    return FlagError("zero", absl::StrCat("some of 0 to ", kMostZero), text);
  }
  if (zeros.empty()) return FlagError("zero", absl::StrCat("some of 0 to ", kMostZero), "");
  return zeros;
}

bool CanBe(const SweepRules& rules, PlacedJob* job) {
  return CheckJob(job).ok() && (rules.ranks_own || !OwnersAreRanks(job->spec));
}

void AddConsistencies(const JobSweep& sweep, PlacedJob job, std::vector<PlacedJob>* jobs) {
  const size_t before = jobs->size();
  for (Consistency consistency : sweep.consistencies) {
    job.spec.consistency = consistency;
    if (CanBe(sweep.rules, &job)) jobs->push_back(job);
  }
  if (jobs->size() > before || !sweep.rules.bulk_elsewhere) return;
  job.spec.consistency = Consistency();
  if (CanBe(sweep.rules, &job)) jobs->push_back(job);
}

// With `job`'s topology, link and update site.
void AddPlaced(const JobSweep& sweep, PlacedJob job, std::vector<PlacedJob>* jobs) {
  std::vector<Placement> placements = {Placement::kNone};
  std::vector<int> counts = {0};
  if (job.spec.topology == Topology::kPs) {
    placements = sweep.placements;
    counts = sweep.servers;
    if (OwnersAreRanks(job.spec)) placements = {Placement::kColocated};
  }
  for (Placement placement : placements) {
    job.placement = placement;
    for (int count : counts) {
      job.servers = count;
      for (Codec codec : sweep.codecs) {
        job.spec.codec = codec;
        AddConsistencies(sweep, job, jobs);
      }
    }
  }
}

// All jobs of a sweep of which one or more lists were replaced.
std::vector<PlacedJob> AllJobs(const JobSweep& sweep) {
  std::vector<PlacedJob> all;
  for (int workers : sweep.workers) {
    const std::vector<PlacedJob> jobs = ListJobs(sweep, workers, "");
    all.insert(all.end(), jobs.begin(), jobs.end());
  }
  return all;
}

// A value of another flag with which there would be jobs.
struct Lack {
  std::string flag;
  std::string value;
  std::string found;  // what was asked for instead
};

// Unless `flag` is `of`, or something is lacking already.
template <typename T>
void LookFor(const JobSweep& sweep, absl::string_view of, std::vector<T> JobSweep::*axis,
             absl::string_view flag, const std::vector<T>& values, std::string (*name)(T),
             absl::optional<Lack>* lack) {
  if (flag == of) return;
  for (const T& value : values) {
    if (lack->has_value()) return;
    JobSweep with = sweep;
    with.*axis = {value};
    if (AllJobs(with).empty()) continue;
    *lack = Lack{std::string(flag), name(value), absl::StrJoin(NamesOf(sweep.*axis, name), ",")};
  }
}

// What a sweep without a single job lacks, if it is one value of one flag other than `of`.
absl::optional<Lack> LackOf(const JobSweep& sweep, absl::string_view of) {
  absl::optional<Lack> lack;
  LookFor<Topology>(sweep, of, &JobSweep::topologies, "topology", {Topology::kRing, Topology::kPs},
                    TopologyName, &lack);
  LookFor<UpdateSite>(sweep, of, &JobSweep::updates, "update",
                      {UpdateSite::kOwner, UpdateSite::kWorker}, UpdateSiteName, &lack);
  LookFor<Link>(sweep, of, &JobSweep::links, "link", {Link::kGrpc}, LinkName, &lack);
  LookFor<Codec>(sweep, of, &JobSweep::codecs, "compression", {Codec()}, CodecName, &lack);
  LookFor<Consistency>(sweep, of, &JobSweep::consistencies, "consistency", {Consistency()},
                       ConsistencyName, &lack);
  return lack;
}

// Why the first combination cannot be.
absl::Status Refusal(const JobSweep& sweep) {
  PlacedJob job;
  job.spec.topology = sweep.topologies.front();
  job.spec.link = sweep.links.front();
  job.zero = sweep.zeros.front();
  job.spec.update = UpdatesWith(sweep, job.zero).front();
  job.spec.codec = sweep.codecs.front();
  job.spec.consistency = sweep.consistencies.front();
  if (job.spec.topology == Topology::kPs) {
    job.servers = 1;
    job.placement = Placement::kDedicated;
  }
  return CheckJob(&job);
}

// For each value of a list that no job has: `say(value, lack)` where it lacks one value of another
// flag, and the refusal where nothing is lacking or said. Not for `plain`, which lacks only what
// everything lacks.
template <typename T, typename Say>
absl::Status CheckEach(const JobSweep& sweep, const std::vector<PlacedJob>& jobs,
                       std::vector<T> JobSweep::*axis, T JobSpec::*field, absl::string_view flag,
                       const absl::optional<T>& plain, const Say& say) {
  for (const T& value : sweep.*axis) {
    const auto has = [&](const PlacedJob& job) { return job.spec.*field == value; };
    if (value == plain || std::any_of(jobs.begin(), jobs.end(), has)) continue;
    JobSweep only = sweep;
    only.*axis = {value};
    only.rules.bulk_elsewhere = false;
    // With room for them there may be jobs; about that the placements' check and the last one are.
    only.servers = {1};
    only.placements = {Placement::kDedicated};
    if (!AllJobs(only).empty()) continue;
    const absl::optional<Lack> lack = LackOf(only, flag);
    const absl::Status said = lack.has_value() ? say(value, *lack) : absl::OkStatus();
    GS_RETURN_IF_ERROR(said.ok() ? Refusal(only) : said);
  }
  return absl::OkStatus();
}

std::string Among(const Lack& lack) { return absl::StrCat(lack.value, " among --", lack.flag); }

absl::Status CheckPlaced(const JobSweep& sweep, const std::vector<PlacedJob>& jobs) {
  const auto placed = [](const std::vector<PlacedJob>& all, Placement placement) {
    return std::any_of(all.begin(), all.end(),
                       [&](const PlacedJob& job) { return job.placement == placement; });
  };
  JobSweep dedicated = sweep;
  dedicated.placements = {Placement::kDedicated};
  if (!placed(AllJobs(dedicated), Placement::kDedicated)) return absl::OkStatus();
  for (Placement placement : sweep.placements) {
    if (placed(jobs, placement)) continue;
    PlacedJob refused;
    refused.placement = placement;
    refused.servers = refused.workers + 1;
    return CheckJob(&refused);
  }
  return absl::OkStatus();
}

}  // namespace

std::map<std::string, std::string> SweepAliases() {
  return {{"topologies", "topology"},
          {"links", "link"},
          {"updates", "update"},
          {"worker", "workers"},
          {"ranks", "workers"},
          {"rank", "workers"},
          {"server", "servers"},
          {"placements", "placement"},
          {"compressions", "compression"},
          {"consistencies", "consistency"},
          {"bandwidths", "bandwidth"},
          {"sizes", "bytes"},
          {"models", "model"},
          {"batch", "batch_size"},
          {"compute_scales", "compute_scale"},
          {"profiles", "replay"},
          {"contestant", "contestants"},
          // As nccl-tests has them.
          {"b", "min_bytes"},
          {"e", "max_bytes"},
          {"f", "factor"},
          {"n", "iterations"},
          {"w", "warmup"}};
}

absl::StatusOr<JobSweep> ParseJobSweep(const SweepFlags& flags, const SweepRules& rules) {
  JobSweep sweep;
  sweep.rules = rules;
  GS_ASSIGN_OR_RETURN(sweep.topologies,
                      ParseEach("topology", flags.topologies, rules.topologies, TopologyName));
  GS_ASSIGN_OR_RETURN(sweep.links, ParseEach("link", flags.links, rules.links, LinkName));
  if (rules.on_hosts) GS_RETURN_IF_ERROR(CheckBetweenHosts(sweep.links));
  GS_ASSIGN_OR_RETURN(
      sweep.updates,
      ParseEach<UpdateSite>("update", flags.updates, {UpdateSite::kWorker, UpdateSite::kOwner},
                            UpdateSiteName));
  GS_ASSIGN_OR_RETURN(sweep.workers, ParseCounts("workers", flags.workers, rules.most_processes));
  if (Contains(sweep.topologies, Topology::kPs)) {
    GS_ASSIGN_OR_RETURN(sweep.servers, ParseCounts("servers", flags.servers, rules.most_processes));
  }
  GS_ASSIGN_OR_RETURN(sweep.placements, ParsePlacements(flags, rules.on_hosts));
  GS_ASSIGN_OR_RETURN(sweep.codecs, ParseCodecs(flags.compressions, rules.sparse));
  GS_ASSIGN_OR_RETURN(sweep.consistencies, ParseConsistencies(flags.consistencies));
  GS_ASSIGN_OR_RETURN(sweep.zeros, ParseZeros(flags.zeros));
  return sweep;
}

std::vector<UpdateSite> UpdatesWith(const JobSweep& sweep, int zero) {
  return zero == 0 ? sweep.updates : std::vector<UpdateSite>{UpdateSite::kOwner};
}

std::vector<PlacedJob> ListJobs(const JobSweep& sweep, int workers, const std::string& bandwidth) {
  std::vector<PlacedJob> jobs;
  PlacedJob job;
  job.workers = workers;
  job.bandwidth = bandwidth;
  for (Topology topology : sweep.topologies) {
    job.spec.topology = topology;
    const bool alone = topology == Topology::kLocal;
    for (Link link : alone ? std::vector<Link>{Link::kAuto} : sweep.links) {
      job.spec.link = link;
      for (int zero : sweep.zeros) {
        job.zero = zero;
        for (UpdateSite update : UpdatesWith(sweep, zero)) {
          job.spec.update = update;
          AddPlaced(sweep, job, &jobs);
        }
      }
    }
  }
  return jobs;
}

absl::Status CheckAllOccur(const JobSweep& sweep, const std::vector<PlacedJob>& jobs) {
  if (!sweep.rules.spare_placements) GS_RETURN_IF_ERROR(CheckPlaced(sweep, jobs));
  GS_RETURN_IF_ERROR(CheckEach<Consistency>(
      sweep, jobs, &JobSweep::consistencies, &JobSpec::consistency, "consistency", Consistency(),
      [](Consistency value, const Lack& lack) {
        return FlagError("consistency", absl::StrCat("bsp without ", Among(lack)),
                         ConsistencyName(value));
      }));
  GS_RETURN_IF_ERROR(CheckEach<Codec>(
      sweep, jobs, &JobSweep::codecs, &JobSpec::codec, "compression", Codec(),
      [](Codec value, const Lack& lack) {
        const std::string name = CodecName(value);
        return FlagError("compression", absl::StrCat(Among(lack), " for ", name), name);
      }));
  const bool linked = std::any_of(sweep.topologies.begin(), sweep.topologies.end(),
                                  [](Topology topology) { return topology != Topology::kLocal; });
  if (linked) {
    GS_RETURN_IF_ERROR(CheckEach<Link>(
        sweep, jobs, &JobSweep::links, &JobSpec::link, "link", Link::kAuto,
        [](Link value, const Lack& lack) {
          if (lack.flag != "topology") return absl::OkStatus();
          return FlagError("link", absl::StrCat("grpc, or ", Among(lack)), LinkName(value));
        }));
  }
  for (int zero : sweep.zeros) {
    JobSweep only = sweep;
    only.zeros = {zero};
    if (AllJobs(only).empty()) GS_RETURN_IF_ERROR(Refusal(only));
  }
  // Of an update site the refusal says it better.
  GS_RETURN_IF_ERROR(CheckEach<UpdateSite>(
      sweep, jobs, &JobSweep::updates, &JobSpec::update, "update", absl::nullopt,
      [](UpdateSite, const Lack&) { return absl::OkStatus(); }));
  if (!sweep.rules.spare_topologies) {
    GS_RETURN_IF_ERROR(CheckEach<Topology>(
        sweep, jobs, &JobSweep::topologies, &JobSpec::topology, "topology", Topology::kLocal,
        [](Topology value, const Lack& lack) {
          return FlagError(lack.flag,
                           absl::StrCat(lack.value, " too, for --topology=", TopologyName(value)),
                           lack.found);
        }));
  }
  if (!jobs.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--servers: expected a number that fits --placement and --workers, found none");
}

}  // namespace gradsync
