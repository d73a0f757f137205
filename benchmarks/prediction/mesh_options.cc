#include "benchmarks/prediction/mesh_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/profiles/step_profile.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

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
