#include "benchmarks/options/mesh_flags.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

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

absl::StatusOr<std::vector<int64_t>> ParseMicroBatches(const std::vector<std::string>& texts) {
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

absl::StatusOr<std::vector<PipelineSchedule>> ParseSchedules(
    const std::vector<std::string>& texts) {
  std::vector<PipelineSchedule> schedules;
  for (const std::string& text : texts) {
    GS_ASSIGN_OR_RETURN(schedules.emplace_back(), ParsePipelineSchedule(text));
  }
  if (schedules.empty()) return FlagError("pipeline_schedule", "naive, gpipe or 1f1b", "");
  return schedules;
}

}  // namespace

absl::Status CheckNoMesh(const MeshFlags& flags) {
  const MeshFlags plain;
  const std::tuple<absl::string_view, std::string, std::string> lists[] = {
      {"pipeline_schedule", absl::StrJoin(plain.schedules, ","),
       absl::StrJoin(flags.schedules, ",")},
      {"micro_batches", absl::StrJoin(plain.micro_batches, ","),
       absl::StrJoin(flags.micro_batches, ",")},
      {"split", plain.splits, flags.splits}};
  for (const auto& [flag, expected, found] : lists) {
    if (found != expected) return FlagError(flag, "none without --mesh", found);
  }
  return flags.split_sequence ? NoSlicesToSplitFor() : absl::OkStatus();
}

absl::Status NoSlicesToSplitFor() {
  return FlagError("sequence_parallel", "false without slices (--mesh=tensor=N)", "true");
}

absl::StatusOr<Mesh> ParseMesh(absl::string_view text) {
  return Mesh::Parse(text, WorldSizeOf(text));
}

absl::StatusOr<MeshLists> ParseMeshLists(const MeshFlags& flags) {
  MeshLists lists;
  GS_ASSIGN_OR_RETURN(lists.schedules, ParseSchedules(flags.schedules));
  GS_ASSIGN_OR_RETURN(lists.micro_batches, ParseMicroBatches(flags.micro_batches));
  lists.splits = absl::StrSplit(flags.splits, ';');
  return lists;
}

bool CanBeCut(const PlacedJob& job, const Mesh& mesh) {
  const int parts = mesh.size(MeshDimension::kPipeline) * mesh.size(MeshDimension::kTensor);
  const JobSpec& spec = job.spec;
  if (spec.topology == Topology::kLocal || !spec.consistency.bulk()) return false;
  if (parts > 1 && spec.codec.compresses()) return false;
  if (spec.topology == Topology::kRing) return true;
  return job.placement != Placement::kMixed && job.servers >= parts;
}

absl::Status NoJobOfMesh(absl::string_view meshes) {
  return FlagError("mesh",
                   "a job that can have stages or slices: ring, or ps with a server for each, bsp, "
                   "no compression",
                   meshes);
}

absl::Status CheckZeroOfMesh(int zero, const Mesh& mesh, int64_t micro_batches) {
  const int shards = mesh.size(MeshDimension::kShard);
  if (zero == 0 && shards > 1) {
    return FlagError("zero", absl::StrCat("1 to 3 with shard=", shards, " (--mesh)"), "0");
  }
  if (zero < 2) return absl::OkStatus();
  if (mesh.cuts_model()) {
    return FlagError("zero", absl::StrCat("0 or 1 with --mesh=", mesh.ToString()),
                     absl::StrCat(zero));
  }
  if (micro_batches == 1) return absl::OkStatus();
  return FlagError("micro_batches", absl::StrCat("1 with --zero=", zero),
                   absl::StrCat(micro_batches));
}

}  // namespace gradsync
