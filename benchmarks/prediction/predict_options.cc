#include "benchmarks/prediction/predict_options.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/profiles/step_profile.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "core/plan/stripes.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr int kMostWorkers = 4096;

// Beyond, workers are taken together, which those that stop now and then cannot be.
constexpr int kMostSharded = 64;

bool ParseCount(absl::string_view text, int* count) {
  return absl::SimpleAtoi(text, count) && *count >= 1 && *count <= kMostWorkers;
}

absl::StatusOr<std::vector<int>> WorkerCounts(const std::vector<std::string>& texts) {
  const std::string expected =
      absl::StrCat("numbers from 1 to ", kMostWorkers, ", or such as 2..64");
  std::vector<int> counts;
  for (const std::string& text : texts) {
    const std::vector<std::string> ends = absl::StrSplit(text, "..");
    int first = 0, last = 0;
    if (ends.size() > 2 || !ParseCount(ends.front(), &first) || !ParseCount(ends.back(), &last) ||
        first > last) {
      return FlagError("workers", expected, text);
    }
    for (int count = first; count <= last; count *= 2) counts.push_back(count);
  }
  if (counts.empty()) return FlagError("workers", expected, "");
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

absl::Status CheckTime(absl::string_view flag, absl::Duration time) {
  if (time >= absl::ZeroDuration() && time < absl::InfiniteDuration()) return absl::OkStatus();
  return FlagError(flag, "at least 0", absl::FormatDuration(time));
}

absl::Status CheckNumbers(const PredictOptions& options) {
  GS_RETURN_IF_ERROR(CheckBandwidths(options.bandwidths));
  if (options.bandwidths.empty()) return FlagError("bandwidth", "such as 10gbit", "");
  if (options.batch_size < 0 || options.batch_size > 1000000) {
    return FlagError("batch_size", "1 to 1000000, or 0", absl::StrCat(options.batch_size));
  }
  if (!(options.compute_scale > 0) || !std::isfinite(options.compute_scale)) {
    return FlagError("compute_scale", "more than 0", absl::StrCat(options.compute_scale));
  }
  if (!(options.rate_factor > 0 && options.rate_factor <= 1)) {
    return FlagError("rate_factor", "more than 0 and at most 1", absl::StrCat(options.rate_factor));
  }
  GS_RETURN_IF_ERROR(CheckTime("latency", options.latency));
  GS_RETURN_IF_ERROR(CheckTime("message_cost", options.message_cost));
  return CheckTime("step_overhead", options.step_overhead);
}

// What all jobs have in common.
absl::StatusOr<PredictedJob> CommonJob(const PredictOptions& options) {
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  PredictedJob job;
  GS_ASSIGN_OR_RETURN(job.bucket_bytes, ParseSize("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(job.first_bucket_bytes,
                      ParseSize("first_bucket_bytes", options.first_bucket_bytes));
  GS_ASSIGN_OR_RETURN(job.chunk_bytes, ParseChunkBytes(options.chunk_bytes));
  if (job.chunk_bytes == 0) job.chunk_bytes = kNetworkChunks;
  job.compute_scale = options.compute_scale;
  const absl::StatusOr<double> device = ParseBandwidth(options.device_bandwidth);
  if (!device.ok()) {
    return FlagError("device_bandwidth", "such as 64gbit", options.device_bandwidth);
  }
  job.device_bytes_per_second = *device;
  job.constants.rate_factor = options.rate_factor;
  job.constants.latency = absl::ToDoubleSeconds(options.latency);
  job.constants.seconds_per_message = absl::ToDoubleSeconds(options.message_cost);
  job.constants.seconds_per_step = absl::ToDoubleSeconds(options.step_overhead);
  return job;
}

// Without numbers of processes, whose spellings are this program's own.
absl::StatusOr<JobSweep> SweepOf(const PredictOptions& options) {
  SweepRules rules;
  rules.topologies = {Topology::kRing, Topology::kPs, Topology::kLocal};
  rules.on_hosts = true;
  rules.spare_topologies = true;
  rules.spare_placements = true;
  SweepFlags kinds = options;
  kinds.workers = kinds.servers = {"1"};
  return ParseJobSweep(kinds, rules);
}

absl::StatusOr<std::vector<double>> Slowness(const std::string& straggler, int workers) {
  std::vector<double> slowness;
  if (straggler.empty()) return slowness;
  GS_ASSIGN_OR_RETURN(const Straggler parsed, Straggler::Parse(straggler));
  if (parsed.random()) {
    return FlagError("straggler", "RANK:FACTOR (a random one has no one step time)", straggler);
  }
  GS_RETURN_IF_ERROR(parsed.CheckWorkers(workers));
  for (int rank = 0; rank < workers; ++rank) slowness.push_back(parsed.Factor(rank, 0));
  return slowness;
}

// The jobs with so many workers, each once: several numbers of servers may come to the same, and
// workers that do not meet update themselves.
absl::StatusOr<std::vector<PlacedJob>> JobsWith(JobSweep sweep, const PredictOptions& options,
                                                int workers, const std::string& bandwidth) {
  sweep.servers.clear();
  for (const std::string& text : options.servers) {
    GS_ASSIGN_OR_RETURN(sweep.servers.emplace_back(), ServersOf(text, workers));
  }
  std::vector<PlacedJob> jobs;
  for (PlacedJob job : ListJobs(sweep, workers, BandwidthName(bandwidth))) {
    if (job.spec.topology == Topology::kLocal) {
      job.spec.update = UpdateSite::kWorker;
      job.zero = 0;
    }
    if (job.zero >= 2 && workers > kMostSharded) {
      return FlagError("zero", absl::StrCat("0 or 1 with more than ", kMostSharded, " workers"),
                       absl::StrCat(job.zero));
    }
    const bool repeated = std::any_of(
        jobs.begin(), jobs.end(), [&job](const PlacedJob& other) { return SameJob(other, job); });
    if (!repeated) jobs.push_back(job);
  }
  return jobs;
}

constexpr char kAuto[] = "auto";

// All of data and pipeline, data parallelism alone first, then of data and tensor.
std::vector<std::string> Factorisations(int workers,
                                        const std::vector<proto::StepProfile>& profiles,
                                        bool split_sequence) {
  std::vector<std::string> meshes;
  const int blocks = profiles[0].blocks_size();
  for (int stages = 1; stages <= std::min(workers, blocks); ++stages) {
    if (workers % stages != 0) continue;
    meshes.push_back(absl::StrCat("data=", workers / stages, ",pipeline=", stages));
  }
  for (int slices = 2; slices <= workers; ++slices) {
    if (workers % slices != 0 || !ProfilesOfSlices(profiles, slices, split_sequence).ok()) continue;
    meshes.push_back(absl::StrCat("data=", workers / slices, ",tensor=", slices));
  }
  return meshes;
}

// The jobs of a mesh's ranks, at all bandwidths.
absl::StatusOr<std::vector<PredictedJob>> JobsOf(PredictOptions options, const Mesh& mesh) {
  options.workers = {absl::StrCat(mesh.world_size())};
  // What a replica has is said by the mesh.
  options.global_batch_size = 0;
  GS_ASSIGN_OR_RETURN(const std::vector<PredictedJob> jobs, ListPredictions(options));
  const auto is_ring = [](const PredictedJob& job) {
    return job.placed.spec.topology == Topology::kRing;
  };
  const bool alone = mesh.replicas() == 1;
  const bool rings_alone = alone && std::any_of(jobs.begin(), jobs.end(), is_ring);
  std::vector<PredictedJob> kept;
  for (const PredictedJob& job : jobs) {
    if (!CanBeCut(job.placed, mesh)) continue;
    if (rings_alone && (!is_ring(job) || job.placed.spec.update == UpdateSite::kOwner)) continue;
    kept.push_back(job);
  }
  return kept;
}

absl::Status CheckZeros(const std::vector<std::string>& zeros, const Mesh& mesh,
                        const std::vector<int64_t>& micro_batches) {
  for (const std::string& text : zeros) {
    int zero = 0;
    if (!absl::SimpleAtoi(text, &zero)) continue;  // refused elsewhere
    for (int64_t count : micro_batches) GS_RETURN_IF_ERROR(CheckZeroOfMesh(zero, mesh, count));
  }
  return absl::OkStatus();
}

// What is asked of each mesh.
struct Asked : MeshLists {
  bool search = false;  // what cannot be is left out
};

// What a search has found, and why it left out what it did, the first reason for each --zero.
struct Found {
  std::vector<PredictedMesh> list;
  std::map<int, absl::Status> left_out;
};

// Adds `next`, whose mesh and job are set, with each schedule, number of micro-batches and split.
absl::Status AddEach(const Asked& asked, const proto::StepProfile& profile, PredictedMesh next,
                     Found* found) {
  const bool cut = next.mesh.has_pipeline();
  const int stages = next.mesh.size(MeshDimension::kPipeline);
  const int64_t samples = next.global_batch_size / next.mesh.replicas();
  for (PipelineSchedule schedule : asked.schedules) {
    if (cut) next.schedule = schedule;
    for (int64_t count : asked.micro_batches) {
      next.micro_batches = count;
      absl::Status fits = CheckZeroOfMesh(next.job.placed.zero, next.mesh, count);
      if (fits.ok() && samples > 0) fits = CutBatch(samples, count).status();
      if (!fits.ok()) {
        if (!asked.search) return fits;
        found->left_out.emplace(next.job.placed.zero, fits);
        continue;
      }
      for (const std::string& split : asked.splits) {
        next.split = cut ? split : kAuto;
        GS_RETURN_IF_ERROR(SplitOf(profile, next.split, stages).status());
        found->list.push_back(next);
        if (!cut) break;
      }
    }
    if (!cut) break;
  }
  return absl::OkStatus();
}

// Adds the jobs of a mesh.
absl::Status AddMesh(const PredictOptions& options, const Asked& asked,
                     const proto::StepProfile& profile, PredictedMesh next, Found* found) {
  const int replicas = next.mesh.replicas();
  if (next.global_batch_size % replicas != 0) {
    if (asked.search) return absl::OkStatus();
    return FlagError("global_batch_size",
                     absl::StrCat("a multiple of ", replicas, ", for ", next.mesh.ToString()),
                     absl::StrCat(next.global_batch_size));
  }
  GS_ASSIGN_OR_RETURN(const std::vector<PredictedJob> jobs, JobsOf(options, next.mesh));
  for (const PredictedJob& job : jobs) {
    next.job = job;
    GS_RETURN_IF_ERROR(AddEach(asked, profile, next, found));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> ServersOf(const std::string& text, int workers) {
  absl::string_view rest = text;
  int number = 0;
  if (absl::ConsumePrefix(&rest, "n")) {
    if (rest.empty()) return workers;
    if (absl::ConsumePrefix(&rest, "/") && ParseCount(rest, &number)) {
      return std::max(1, workers / number);
    }
  } else if (ParseCount(rest, &number)) {
    return number;
  }
  return FlagError("servers",
                   absl::StrCat("numbers from 1 to ", kMostWorkers,
                                ", n (as many as workers) or "
                                "such as n/2"),
                   text);
}

absl::StatusOr<std::vector<PredictedJob>> ListPredictions(const PredictOptions& options) {
  GS_ASSIGN_OR_RETURN(JobSweep sweep, SweepOf(options));
  GS_ASSIGN_OR_RETURN(PredictedJob job, CommonJob(options));
  GS_ASSIGN_OR_RETURN(sweep.workers, WorkerCounts(options.workers));
  if (options.servers.empty()) return FlagError("servers", "at least one number", "");
  for (const std::string& text : options.servers) {
    GS_RETURN_IF_ERROR(ServersOf(text, sweep.workers[0]).status());
  }
  GS_ASSIGN_OR_RETURN(const std::vector<int> replicas,
                      ParseCounts("data_parallel", options.replicas, kNoMost));
  std::vector<PredictedJob> jobs;
  std::vector<PlacedJob> all;
  for (const std::string& bandwidth : options.bandwidths) {
    for (int n : sweep.workers) {
      GS_ASSIGN_OR_RETURN(job.slowness, Slowness(options.straggler, n));
      GS_ASSIGN_OR_RETURN(job.batch_size,
                          BatchPerWorker(options.batch_size, options.global_batch_size, n));
      GS_ASSIGN_OR_RETURN(const std::vector<PlacedJob> placed,
                          JobsWith(sweep, options, n, bandwidth));
      for (const PlacedJob& next : placed) {
        all.push_back(next);
        for (int count : replicas) {
          job.placed = next;
          job.placed.arrangement.data_parallel = count;
          jobs.push_back(job);
        }
      }
    }
  }
  GS_RETURN_IF_ERROR(CheckAllOccur(sweep, all));
  return jobs;
}

absl::StatusOr<std::vector<PredictedMesh>> ListMeshPredictions(
    const PredictOptions& options, const MeshFlags& flags,
    const std::vector<proto::StepProfile>& profiles) {
  const proto::StepProfile& profile = profiles[0];
  GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
  if (options.replicas != PredictOptions().replicas) {
    return FlagError("data_parallel", "1 with --mesh", absl::StrJoin(options.replicas, ","));
  }
  Asked asked;
  GS_ASSIGN_OR_RETURN(static_cast<MeshLists&>(asked), ParseMeshLists(flags));
  asked.search = flags.meshes == kAuto;
  std::vector<std::string> meshes = absl::StrSplit(flags.meshes, ';');
  PredictedMesh next;
  next.global_batch_size = options.global_batch_size;
  next.split_sequence = flags.split_sequence;
  if (asked.search) {
    GS_ASSIGN_OR_RETURN(const std::vector<PredictedJob> jobs, ListPredictions(options));
    const int workers = jobs.back().placed.workers;
    meshes = Factorisations(workers, profiles, flags.split_sequence);
    const int64_t batch =
        options.batch_size > 0 ? options.batch_size : std::max(1, profile.batch_size());
    if (next.global_batch_size == 0) next.global_batch_size = workers * batch;
  }
  Found found;
  for (const std::string& bandwidth : options.bandwidths) {
    PredictOptions at_bandwidth = options;
    at_bandwidth.bandwidths = {bandwidth};
    for (const std::string& text : meshes) {
      GS_ASSIGN_OR_RETURN(next.mesh, ParseMesh(text));
      if (!asked.search) {
        GS_RETURN_IF_ERROR(CheckZeros(options.zeros, next.mesh, asked.micro_batches));
      }
      GS_RETURN_IF_ERROR(
          ProfilesOfSlices(profiles, next.mesh.size(MeshDimension::kTensor), flags.split_sequence)
              .status());
      GS_RETURN_IF_ERROR(AddMesh(at_bandwidth, asked, profile, next, &found));
    }
  }
  for (const auto& [zero, why] : found.left_out) {
    const auto has = [zero = zero](const PredictedMesh& m) { return m.job.placed.zero == zero; };
    if (std::none_of(found.list.begin(), found.list.end(), has)) return why;
  }
  if (!found.list.empty()) return found.list;
  return NoJobOfMesh(flags.meshes);
}

}  // namespace gradsync
