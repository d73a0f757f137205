// The flags of a program that sweeps over meshes, read, and which jobs a mesh can be of.
//
// Pure functions, thread-safe. Errors: INVALID_ARGUMENT naming the flag, what was expected and what
// came (core/base/errors.h).

#ifndef GRADSYNC_BENCHMARKS_OPTIONS_MESH_FLAGS_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_MESH_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/options/placed_job.h"
#include "core/group/mesh.h"
#include "core/plan/pipeline_schedule.h"

namespace gradsync {

// As the flags of the same names, in the singular, were written. Meshes and splits have commas in
// them, so their lists are parted by semicolons: "data=4;data=2,pipeline=2".
struct MeshFlags {
  // "auto", where a program has it: all of data and pipeline with so many workers, and of data and
  // tensor with as many slices as there are profiles of; empty: none
  std::string meshes;
  std::vector<std::string> schedules = {"1f1b"};
  std::vector<std::string> micro_batches = {"4"};
  std::string splits = "auto";
  bool split_sequence = false;  // --sequence_parallel
};

// Whether nothing was asked of a mesh where there is none.
absl::Status CheckNoMesh(const MeshFlags& flags);

// That sequences are split, where nothing has slices.
absl::Status NoSlicesToSplitFor();

// A mesh with as many ranks as its sizes make.
absl::StatusOr<Mesh> ParseMesh(absl::string_view text);

// What is asked of each mesh.
struct MeshLists {
  std::vector<PipelineSchedule> schedules;
  std::vector<int64_t> micro_batches;
  std::vector<std::string> splits;
};
absl::StatusOr<MeshLists> ParseMeshLists(const MeshFlags& flags);

// Whether `job`, which is one on its own, can be the job of this mesh (docs/use/parallelism.md).
bool CanBeCut(const PlacedJob& job, const Mesh& mesh);

// Why there is nothing where CanBeCut() was false of all jobs.
absl::Status NoJobOfMesh(absl::string_view meshes);

// Whether owners keep so much for all on this mesh, with so many micro-batches (docs/use/sharding.md).
absl::Status CheckZeroOfMesh(int zero, const Mesh& mesh, int64_t micro_batches);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_MESH_FLAGS_H_
