// The ranks of a job as a grid: which of them hold the same part of a model, and which parts follow
// one another.

#ifndef GRADSYNC_CORE_GROUP_MESH_H_
#define GRADSYNC_CORE_GROUP_MESH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/group/worker_group.h"

namespace gradsync {

// What ranks along a dimension share out among themselves.
enum class MeshDimension {
  kData,      // batches: each has other samples
  kPipeline,  // layers: each has some of the model's blocks, one after the other
  kTensor,    // the insides of layers
  kShard,     // batches, and what owners keep for all (--zero)
};

// "data", "pipeline", "tensor", "shard".
absl::string_view MeshDimensionName(MeshDimension dimension);

// Ranks are numbered as in an array of the mesh's dimensions in their order, the first slowest: in
// data=2,pipeline=3 rank 4 is data 1, pipeline 1. A dimension that is not named has size 1.
//
// Immutable, hence thread-safe.
class Mesh {
 public:
  // One rank.
  Mesh() = default;

  // All ranks along `data`.
  static Mesh OfData(int world_size);

  // "data=2,pipeline=2", names in any order, each at most once; empty: OfData(). Errors:
  // INVALID_ARGUMENT naming --mesh for another text, for sizes whose product is not `world_size`,
  // and for more than one rank along data and along shard, which no job has yet.
  static absl::StatusOr<Mesh> Parse(absl::string_view text, int world_size);

  int world_size() const { return world_size_; }
  int size(MeshDimension dimension) const;

  // Along which ranks train on other samples: shard where the mesh has that, else data.
  MeshDimension samples() const;

  // How many ranks train on other samples each, with the same part of the model.
  int replicas() const { return size(samples()); }

  // Whether the model is cut into stages.
  bool has_pipeline() const { return size(MeshDimension::kPipeline) > 1; }

  // Whether the model's layers are cut into slices.
  bool has_slices() const { return size(MeshDimension::kTensor) > 1; }

  // Whether ranks have parts of a model.
  bool cuts_model() const { return has_pipeline() || has_slices(); }

  // Of `rank` along `dimension`, from 0.
  int Coordinate(int rank, MeshDimension dimension) const;

  // The ranks that differ from `rank` in nothing but this coordinate, by that coordinate.
  std::vector<int> RanksAlong(int rank, MeshDimension dimension) const;

  // Names that group among all of the mesh: the dimension, and the coordinates that its ranks have
  // in common, as "data@pipeline=1"; no two groups have the same name.
  std::string GroupName(int rank, MeshDimension dimension) const;

  // "data=1,pipeline=0", every named dimension.
  std::string Describe(int rank) const;

  // "data=2,pipeline=2", as Parse() takes it.
  std::string ToString() const;

 private:
  struct Axis {
    MeshDimension dimension;
    int size;
    int stride;  // between ranks that are neighbours along it
  };

  const Axis* Find(MeshDimension dimension) const;
  void SetStrides();

  std::vector<Axis> axes_;
  int world_size_ = 1;
};

// The ranks along `dimension` of which `all`, the group of the whole mesh, has this rank: a group
// with keys of its own in the store, but one fate. A failure in it is one of the whole job, and
// names ranks of the job.
WorkerGroup SubGroup(const WorkerGroup& all, const Mesh& mesh, MeshDimension dimension);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_MESH_H_
