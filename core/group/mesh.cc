#include "core/group/mesh.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

constexpr MeshDimension kDimensions[] = {MeshDimension::kData, MeshDimension::kPipeline,
                                         MeshDimension::kTensor, MeshDimension::kShard};

constexpr char kForm[] =
    "dimensions such as data=2,pipeline=2 (data, pipeline, tensor, shard, each at most once)";

bool FindDimension(absl::string_view name, MeshDimension* found) {
  for (MeshDimension dimension : kDimensions) {
    if (MeshDimensionName(dimension) != name) continue;
    *found = dimension;
    return true;
  }
  return false;
}

}  // namespace

absl::string_view MeshDimensionName(MeshDimension dimension) {
  switch (dimension) {
    case MeshDimension::kData:
      return "data";
    case MeshDimension::kPipeline:
      return "pipeline";
    case MeshDimension::kTensor:
      return "tensor";
    case MeshDimension::kShard:
      return "shard";
  }
  return "none";
}

Mesh Mesh::OfData(int world_size) {
  Mesh mesh;
  mesh.axes_.push_back({MeshDimension::kData, world_size, 1});
  mesh.world_size_ = world_size;
  return mesh;
}

absl::StatusOr<Mesh> Mesh::Parse(absl::string_view text, int world_size) {
  if (text.empty()) return OfData(world_size);
  Mesh mesh;
  int64_t product = 1;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, '=');
    Axis axis = {MeshDimension::kData, 0, 1};
    if (words.size() != 2 || !FindDimension(words[0], &axis.dimension) ||
        mesh.Find(axis.dimension) != nullptr || !absl::SimpleAtoi(words[1], &axis.size) ||
        axis.size < 1) {
      return FlagError("mesh", kForm, text);
    }
    mesh.axes_.push_back(axis);
    product *= axis.size;
    if (product > world_size) break;
  }
  if (product != world_size) {
    return FlagError("mesh", absl::StrCat("sizes whose product is the world size, ", world_size),
                     text);
  }
  if (mesh.size(MeshDimension::kShard) > 1 && mesh.size(MeshDimension::kData) > 1) {
    return FlagError("mesh",
                     "data=1 with shard, along which ranks have samples of their own too (what "
                     "owners keep has no copies along data)",
                     text);
  }
  mesh.world_size_ = world_size;
  mesh.SetStrides();
  return mesh;
}

void Mesh::SetStrides() {
  int stride = 1;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    axis->stride = stride;
    stride *= axis->size;
  }
}

const Mesh::Axis* Mesh::Find(MeshDimension dimension) const {
  for (const Axis& axis : axes_) {
    if (axis.dimension == dimension) return &axis;
  }
  return nullptr;
}

int Mesh::size(MeshDimension dimension) const {
  const Axis* axis = Find(dimension);
  return axis == nullptr ? 1 : axis->size;
}

MeshDimension Mesh::samples() const {
  return size(MeshDimension::kShard) > 1 ? MeshDimension::kShard : MeshDimension::kData;
}

int Mesh::Coordinate(int rank, MeshDimension dimension) const {
  const Axis* axis = Find(dimension);
  return axis == nullptr ? 0 : rank / axis->stride % axis->size;
}

std::vector<int> Mesh::RanksAlong(int rank, MeshDimension dimension) const {
  const Axis* axis = Find(dimension);
  if (axis == nullptr) return {rank};
  const int first = rank - Coordinate(rank, dimension) * axis->stride;
  std::vector<int> ranks;
  for (int i = 0; i < axis->size; ++i) ranks.push_back(first + i * axis->stride);
  return ranks;
}

std::string Mesh::GroupName(int rank, MeshDimension dimension) const {
  std::vector<std::string> common;
  for (const Axis& axis : axes_) {
    if (axis.dimension == dimension) continue;
    common.push_back(
        absl::StrCat(MeshDimensionName(axis.dimension), "=", Coordinate(rank, axis.dimension)));
  }
  const std::string name(MeshDimensionName(dimension));
  return common.empty() ? name : absl::StrCat(name, "@", absl::StrJoin(common, ","));
}

std::string Mesh::Describe(int rank) const {
  std::vector<std::string> parts;
  for (const Axis& axis : axes_) {
    parts.push_back(
        absl::StrCat(MeshDimensionName(axis.dimension), "=", Coordinate(rank, axis.dimension)));
  }
  return absl::StrJoin(parts, ",");
}

std::string Mesh::ToString() const {
  std::vector<std::string> parts;
  for (const Axis& axis : axes_) {
    parts.push_back(absl::StrCat(MeshDimensionName(axis.dimension), "=", axis.size));
  }
  return absl::StrJoin(parts, ",");
}

WorkerGroup SubGroup(const WorkerGroup& all, const Mesh& mesh, MeshDimension dimension) {
  WorkerGroup group = all;
  group.ranks_of_job = mesh.RanksAlong(all.rank, dimension);
  group.rank = mesh.Coordinate(all.rank, dimension);
  group.world_size = static_cast<int>(group.ranks_of_job.size());
  group.part = mesh.GroupName(all.rank, dimension);
  return group;
}

}  // namespace gradsync
