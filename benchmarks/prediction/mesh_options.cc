#include "benchmarks/prediction/mesh_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flag_error.h"
#include "base/status_macros.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/profiles/step_profile.h"

namespace gradsync {
namespace {

constexpr char kAuto[] = "auto";
constexpr int64_t kMostRanks = 4096;
constexpr int kMostMicroBatches = 100000;

// The product of the sizes, for Mesh::Parse() to check; 1 where it makes no sense.
int WorldSizeOf(absl::string_view mesh) {
  int64_t product = 1;
  for (absl::string_view part : absl::StrSplit(mesh, ',')) {
    const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(part, '=');
    int64_t size = 0;
    if (!absl::SimpleAtoi(sides.second, &size) || size < 1 || size > kMostRanks) return 1;
    product = std::min(kMostRanks + 1, product * size);
  }
  return static_cast<int>(product);
}

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

absl::StatusOr<std::vector<int64_t>> Counts(const std::vector<std::string>& texts) {
  const std::string expected = absl::StrCat("numbers from 1 to ", kMostMicroBatches);
  std::vector<int64_t> counts;
  for (const std::string& text : texts) {
    int64_t& count = counts.emplace_back();
    if (!absl::SimpleAtoi(text, &count) || count < 1 || count > kMostMicroBatches) {
      return FlagError("micro_batches", expected, text);
    }
  }
  if (counts.empty()) return FlagError("micro_batches", expected, "");
  return counts;
}

absl::StatusOr<std::vector<PipelineSchedule>> Schedules(const std::vector<std::string>& texts) {
  std::vector<PipelineSchedule> schedules;
  for (const std::string& text : texts) {
    GS_ASSIGN_OR_RETURN(schedules.emplace_back(), ParsePipelineSchedule(text));
  }
  if (schedules.empty()) return FlagError("pipeline_schedule", "naive, gpipe or 1f1b", "");
  return schedules;
}

// Whether a job with stages or slices is like that (docs/parallelism.md).
bool CanBeCut(const PlacedJob& job, const Mesh& mesh) {
  const int stages = mesh.size(MeshDimension::kPipeline) * mesh.size(MeshDimension::kTensor);
  const JobSpec& spec = job.spec;
  if (spec.topology == Topology::kLocal || !spec.consistency.bulk()) return false;
  if (stages > 1 && spec.codec.compresses()) return false;
  if (spec.topology == Topology::kRing) return true;
  return job.placement != Placement::kMixed && job.servers >= stages;
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

// Whether a job on this mesh keeps things at owners alone as asked (docs/sharding.md).
absl::Status CheckZeros(const std::vector<std::string>& zeros, const Mesh& mesh,
                        const std::vector<int64_t>& micro_batches) {
  const int shards = mesh.size(MeshDimension::kShard);
  for (const std::string& zero : zeros) {
    if (zero == "0" && shards > 1) {
      return FlagError("zero", absl::StrCat("1 to 3 with shard=", shards, " (--mesh)"), zero);
    }
    if (zero != "2" && zero != "3") continue;
    if (mesh.cuts_model()) {
      return FlagError("zero", absl::StrCat("0 or 1 with --mesh=", mesh.ToString()), zero);
    }
    for (int64_t count : micro_batches) {
      if (count > 1) {
        return FlagError("micro_batches", absl::StrCat("1 with --zero=", zero),
                         absl::StrCat(count));
      }
    }
  }
  return absl::OkStatus();
}

// What is asked of each mesh.
struct Arrangements {
  std::vector<PipelineSchedule> schedules;
  std::vector<int64_t> micro_batches;
  std::vector<std::string> splits;
  bool search = false;  // what cannot be is left out
};

absl::StatusOr<Arrangements> ArrangementsOf(const MeshFlags& flags) {
  Arrangements arrangements;
  GS_ASSIGN_OR_RETURN(arrangements.schedules, Schedules(flags.schedules));
  GS_ASSIGN_OR_RETURN(arrangements.micro_batches, Counts(flags.micro_batches));
  arrangements.splits = absl::StrSplit(flags.splits, ';');
  arrangements.search = flags.meshes == kAuto;
  return arrangements;
}

// Adds `next`, whose mesh and job are set, with each schedule, number of micro-batches and split.
absl::Status AddEach(const Arrangements& asked, const proto::StepProfile& profile,
                     PredictedMesh next, std::vector<PredictedMesh>* list) {
  const bool cut = next.mesh.has_pipeline();
  const int stages = next.mesh.size(MeshDimension::kPipeline);
  const int64_t samples = next.global_batch_size / next.mesh.replicas();
  for (PipelineSchedule schedule : asked.schedules) {
    if (cut) next.schedule = schedule;
    for (int64_t count : asked.micro_batches) {
      next.micro_batches = count;
      const absl::Status fits = samples == 0 ? absl::OkStatus() : CutBatch(samples, count).status();
      if (!fits.ok() && asked.search) continue;
      GS_RETURN_IF_ERROR(fits);
      for (const std::string& split : asked.splits) {
        next.split = cut ? split : kAuto;
        GS_RETURN_IF_ERROR(SplitOf(profile, next.split, stages).status());
        list->push_back(next);
        if (!cut) break;
      }
    }
    if (!cut) break;
  }
  return absl::OkStatus();
}

// Adds the jobs of a mesh.
absl::Status AddMesh(const PredictOptions& options, const Arrangements& asked,
                     const proto::StepProfile& profile, PredictedMesh next,
                     std::vector<PredictedMesh>* list) {
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
    GS_RETURN_IF_ERROR(AddEach(asked, profile, next, list));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<PredictedMesh>> ListMeshPredictions(
    const PredictOptions& options, const MeshFlags& flags,
    const std::vector<proto::StepProfile>& profiles) {
  const proto::StepProfile& profile = profiles[0];
  GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
  GS_ASSIGN_OR_RETURN(const Arrangements asked, ArrangementsOf(flags));
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
  std::vector<PredictedMesh> list;
  for (const std::string& bandwidth : options.bandwidths) {
    PredictOptions at_bandwidth = options;
    at_bandwidth.bandwidths = {bandwidth};
    for (const std::string& text : meshes) {
      GS_ASSIGN_OR_RETURN(next.mesh, Mesh::Parse(text, WorldSizeOf(text)));
      GS_RETURN_IF_ERROR(CheckZeros(options.zeros, next.mesh, asked.micro_batches));
      GS_RETURN_IF_ERROR(
          ProfilesOfSlices(profiles, next.mesh.size(MeshDimension::kTensor), flags.split_sequence)
              .status());
      GS_RETURN_IF_ERROR(AddMesh(at_bandwidth, asked, profile, next, &list));
    }
  }
  if (!list.empty()) return list;
  return FlagError("mesh",
                   "a job that can have stages or slices: ring, or ps with a server for each, bsp",
                   flags.meshes);
}

}  // namespace gradsync
